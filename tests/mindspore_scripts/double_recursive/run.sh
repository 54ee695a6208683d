mpirun -n 8 python train.py
