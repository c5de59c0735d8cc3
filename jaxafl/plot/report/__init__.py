"""A report: one page that needs nothing but a browser.

What is compared (`lines`), its pictures (`figures`, `clients`), its tables (`tables`, `settings`) and the page around
them (`page`, of `markup`). `page.html`, `page.css` and `page.js` are the page's frame, looks and switches;
`chart.umd.min.js` is Chart.js 4.6.1 as npm has it (`chart.js/dist`), 0.2 MB, where Plotly takes 4.8.
"""
