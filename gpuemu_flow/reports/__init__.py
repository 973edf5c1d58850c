"""Writers of results as text, JSON, HTML, Markdown, JUnit XML, SARIF and pytest files."""
