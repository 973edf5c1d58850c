"""Writers of results: text, JSON, HTML, Markdown, JUnit XML, SARIF and pytest files."""
