"""What the service does under more load than it can carry: `python -m loadtest.overload`.

Requests of all areas are sent at a fixed rate, whether earlier ones have been answered or not. The program finds the
highest rate at which nearly all requests are answered in time, and then sends at one, two and three times this rate.
"""
