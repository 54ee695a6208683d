mpirun -n 8 --output-filename log python train.py
