"""``nki_cpu_simulator.nki.builtin``, which the test harness of AWS's kernel library imports: nothing is needed from it."""
