"""Print ``docs/results.md``."""

from ddlbench.report.reference import results_page

if __name__ == "__main__":
    print(results_page(), end="")
