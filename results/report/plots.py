"""The plots of a report, in its order."""

from __future__ import annotations

from results.report.breakdown_plots import real_over_synthetic, sent, time_goes
from results.report.figures import Plot
from results.report.scaling_plots import batches, efficiency, managers, scaling, steps

PLOTS = (
    Plot("scaling", "Scaling", "The dotted line is one device times their number; bars are 95 % intervals.", scaling),
    Plot("efficiency", "Efficiency", "Speed-up over one device, divided by the number of devices.", efficiency),
    Plot("managers", "Variable managers", "With the largest number of devices; bars are 95 % intervals.", managers),
    Plot("batches", "Batch size", "Where a line is flat, a larger batch brings nothing.", batches),
    Plot("time", "Where time goes", "Computing is a step under `independent`; input is what real data add.", time_goes),
    Plot("sent", "Bytes sent per step", "By formula, all devices together.", sent),
    Plot("real_over_synthetic", "Real over synthetic", "1 means that input costs nothing.", real_over_synthetic),
    Plot("steps", "Step times", "The latest runs; warm-up is shaded, the first step may exceed the picture.", steps),
)
