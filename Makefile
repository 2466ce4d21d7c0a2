# Two commands do all the set-up: `make run` (the main job on 4 ranks) and `make test` (everything).
# MPI=1 wants MPI, MPI=0 builds without; by default it is used where it is found. MPI_HOME or MPICC says which.
# NVLS=1 builds with multicast on GPUs, which no other build contains.
SHELL := /bin/sh
export MPI MPI_HOME MPICC NVLS FULL

.PHONY: build run test test-rdma check race fuzz bench bench-peers bench-hosts bench-gpu verify-gpu test-gpu kernels lint clean help

build: ## programs into bin/, with MPI where it is found; NVLS=1: with multicast on GPUs
	@scripts/build

run: ## install MPI if that may be done, build, run the main job on 4 ranks
	@scripts/run

test: ## all tests, as CI runs them: installs both MPIs if that may be done; FULL=1: nothing left out, for hours
	@scripts/test

check: lint ## the daily minute: no MPI, no race detector, nothing that takes long
	@# More packages at a time than processors: some mostly wait.
	go test -short -p $$((2 * $$(getconf _NPROCESSORS_ONLN))) ./...

test-rdma: ## what needs an RDMA device, in virtual machines that have one, made of Debian's packages
	@scripts/test-rdma

race: ## the unit tests under the race detector
	go test -race ./...

fuzz: ## each fuzz test for FUZZTIME (10s)
	@scripts/fuzz

bench: ## all benchmarks
	go test -run '^$$' -bench . -benchmem ./...

bench-peers: ## against Open MPI, MPICH and the bound of the hardware; ARGS="-op all_gather -np 4"
	@scripts/bench-peers $(ARGS)

bench-hosts: ## hosts against Open MPI, MPICH and gloo over TCP, as root; ARGS="-rounds 20 -ops all"
	@scripts/bench-hosts $(ARGS)

bench-gpu: ## against NCCL and PyTorch's symmetric memory on GPUs; ARGS="-op all -np 2,4 -G 0"
	@scripts/bench-gpu $(ARGS)

verify-gpu: ## every operation and type of 2, 3 and 4 ranks on GPUs, element by element; ARGS="-np 2 all_reduce"
	@scripts/verify-gpu $(ARGS)

test-gpu: ## the tests of devices on real GPUs, which ranks share where there are fewer; ARGS="-run Device ./coll"
	@scripts/test-gpu $(ARGS)

kernels: ## rebuild the device kernels' PTX, with clang 19
	@scripts/kernels

lint: ## formatting, vet, also with MPI and without cgo, and staticcheck; FULL=1: vet for other systems, too
	@scripts/lint

clean: ## what make has built
	rm -rf bin build

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 14
