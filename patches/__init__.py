"""Git components and candidate pull requests: fetched, checked out and compared with GitPython."""
