"""The dashboard. Several sessions, their jobs and often the browser share the machine's cores."""

import os

# Threads that wait for each other must sleep, not spin: on 2 busy cores a toggle in layer 1 of the demo took 1.3 s in
# place of 3 to 6 s. Read when torch is first imported; what the user has set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
