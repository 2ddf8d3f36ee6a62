"""What an audit found, and why. After `make demo`:

python examples/what_is_wrong.py demo-out/tables
"""

import sys

import dovetail


def main(path: str) -> None:
    tables = dovetail.open_tables(path)
    findings = tables["findings"].pandas()
    print(findings.groupby(["severity", "check"]).size())
    for row in findings[findings.check == "delivery.lost"].itertuples():
        print(tables.why(row.message))


if __name__ == "__main__":
    main(sys.argv[1])
