"""``python -m ddlbench.networks``: the table of docs/networks.md."""

from ddlbench.networks.summary import markdown_table

if __name__ == "__main__":
    print(markdown_table())
