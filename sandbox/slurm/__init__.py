"""A pretend slurmrestd that really runs scripts, as local process groups on pretend nodes."""
