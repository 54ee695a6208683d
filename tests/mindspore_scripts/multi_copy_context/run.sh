mpirun -n 8 --output-filename log_output --merge-stderr-to-stdout python train.py
