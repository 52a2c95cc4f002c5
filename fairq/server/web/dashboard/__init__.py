"""The operators' dashboard: server-rendered pages that follow the queues live.

A page is a row of `pages.PAGES`: a path, a template, and a function that gathers what the template shows by asking the
server's own frames, so that a page can do nothing that an operator's client could not. The same page is served twice:
as HTML, and under /live as a stream of its changing part. What changes something is a row of `actions.ACTIONS`.
Nothing is built, and nothing is loaded from elsewhere: static/ has htmx, its stream extension, and uPlot, as released.
"""
