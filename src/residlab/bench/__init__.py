"""Side-by-side benchmarks: ratios from one run, with the floors of operations and bytes beside them."""
