msrun --worker_num=8 --local_worker_num=8 --master_port=8118 --log_dir=log train.py
