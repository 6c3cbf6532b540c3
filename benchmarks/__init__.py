"""Speed and memory, as ratios against the floor and against peers, side by side in one run: ``make bench``."""
