"""Side-by-side benchmarks: each measures its contenders and its floors in one run, and reports ratios."""
