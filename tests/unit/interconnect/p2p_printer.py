"""Prints what p2pBandwidthLatencyTest prints, with numbers that tell where they come from.

A matrix value is ``base + 10 * row + column``, so that a transposed or swapped one is noticed.
"""

BASES = {
    ("Unidirectional", "Disabled", ""): 100.0,
    ("Unidirectional", "Enabled", "Writes"): 200.0,
    ("Unidirectional", "Enabled", "Reads"): 300.0,
    ("Bidirectional", "Disabled", ""): 400.0,
    ("Bidirectional", "Enabled", ""): 500.0,
    ("Latency", "Disabled", ""): 20.0,
    ("Latency", "Enabled", "Writes"): 2.0,
    ("Latency", "Enabled", "Reads"): 3.0,
}
CPU_BASE = 7000.0  # wider than its field


def values(base, count):
    return [[base + 10 * row + column for column in range(count)] for row in range(count)]


def matrix(corner, rows):
    lines = [corner + "".join(f"{column:6d} " for column in range(len(rows)))]
    lines += [
        f"{index:6d} " + "".join(f"{value:6.02f} " for value in row)
        for index, row in enumerate(rows)
    ]
    return "\n".join(lines) + "\n"


def connectivity(count):
    lines = ["     D\\D" + "".join(f"{column:6d}" for column in range(count))]
    lines += [f"{row:6d}\t" + f"{1:6d}" * count for row in range(count)]
    return "P2P Connectivity Matrix\n" + "\n".join(lines) + "\n"


def printed(count, reads=False, old=False, change=lambda key, rows: rows):
    """The whole output; ``old`` as before CUDA 10, ``change`` replaces the values of a matrix."""
    text = "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n"
    for index in range(count):
        text += f"Device: {index}, NVIDIA A100-SXM4-40GB, pciBusID: {7 + 32 * index:x}, "
        text += "pciDeviceID: 0, pciDomainID:0\n"
    for i in range(count):
        for j in range(count):
            text += f"Device={i} CAN Access Peer Device={j}\n" if i != j else ""
    text += "\n***NOTE: In case a device doesn't have P2P access to other one, it falls back to "
    text += "normal memcopy procedure.\nSo you can see lesser Bandwidth (GB/s) and unstable "
    text += "Latency (us) in those cases.\n\n" + connectivity(count)
    for key, base in BASES.items():
        what, access, operation = key
        if operation == "Reads" and not reads:
            continue
        rows = change(key, values(base, count))
        said = f" (P2P {operation})" if operation and not old else ""
        if what != "Latency":
            text += f"{what} P2P={access} Bandwidth{said} Matrix (GB/s)\n"
            text += matrix("   D\\D", rows)
        elif old:
            text += f"P2P={access} Latency Matrix (us)\n" + matrix("   D\\D", rows)
        else:
            text += f"P2P={access} Latency{said} Matrix (us)\n" + matrix("   GPU", rows)
            text += "\n" + matrix("   CPU", values(CPU_BASE, count))
    return text + (
        "\nNOTE: The CUDA Samples are not meant for performance measurements. Results may vary "
        "when GPU Boost is enabled.\n"
    )
