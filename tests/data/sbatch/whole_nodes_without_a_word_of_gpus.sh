#!/bin/bash

#SBATCH --nodes=2
#SBATCH --job-name=container-pretrain
#SBATCH --output=logs/%x_%j.out
#SBATCH --error=logs/%x_%j.err
#SBATCH --exclusive
: "${IMAGE:=/fsx/images/train.sqsh}"
srun -l --container-image "$IMAGE" --container-mounts /fsx:/fsx python pretrain.py
