"""`omni bench connector`: how long a payload takes from one process to another, against other ways to carry it.

command    the flags, and what is written in the end
run        starts one pair of processes for each way, and lets them work in turns
end        one process of a pair
ways       the ways: connectors, and what they are compared with
report     medians, ratios, tables, JSON
"""
