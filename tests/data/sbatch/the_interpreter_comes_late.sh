# how this was made is told below
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --time=10
./run
