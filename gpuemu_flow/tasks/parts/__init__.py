"""Parts that stages share: running programs, compilers, differences; none is a stage itself."""
