"""Every Python that has this folder on its path imports this first: drivers of Spark, and the workers that they start."""

from tests.support.fault_points import install

install()
