"""The fault campaign: named faults with seeds, in simulation and on the real stack, each with exact counts.

world      a lake in one process: two catalog replicas, engines, reader, reaper, one step at a time
watch      what the store held at every moment, and the rules that hold then
oracle     what must hold at the end
scenario   what a fault is: when it happens, and what it changes in the world
kills, answers, writers, streams, upkeep   the faults
mutants    rules of the product that are taken out; each must be noticed by the faults that it names
runs       one run, and what a process does: it loads what its way of writing needs, and nothing else
kept       results of pure functions that are kept from one simulated process to the next
sources    the files of this repository that a process has loaded; results are kept by their digest
simulate   runs seeds in processes and writes the result file
gateway_world, gateway_process, gateway_clients, waits   gateways in place of engines, and their clients
gateway_faults, gateway_log, gateway_oracle, gateway_mutants   likewise: the faults, with lake and with log
real       the same faults on a running stack
page       docs/faults.md, generated from the result files
"""
