"""Report of results: one page that needs nothing but a browser.

Its modules are the compared runs (`lines`), figures (`figures`), tables (`tables`, `settings`), and the page
around them (`page`, `markup`). `page.html`, `page.css` and `page.js` are its template, style and switches.
`chart.umd.min.js` is Chart.js 4.6.1 from npm (`chart.js/dist`), 0.2 MB, against 4.8 MB of Plotly.
"""
