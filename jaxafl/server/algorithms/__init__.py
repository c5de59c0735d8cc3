"""The algorithms of the papers, a file each; `jaxafl.server` lists their names."""
