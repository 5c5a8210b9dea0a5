"""What all suites share: measuring, one process per problem, tables, comparison of two results.

A suite is data (`suite.py`): names of problems, a function that measures one of them, and a
function that makes tables of what was measured.
"""
