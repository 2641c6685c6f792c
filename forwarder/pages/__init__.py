"""What the product's pages share: one visual language (`base.css`, `icon.svg`, `ago.js`), and how
a page's files are served.

Invariants: a page asks only the server that it came from; nothing in it runs that isn't one of its
own files.
"""
