"""Pure numerics: generator, dtypes, layouts, ulp, comparison, tolerances."""
