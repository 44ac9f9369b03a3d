# make run | stop | check | test | torture | soak | bench | lab | install | deb | static | lint | fuzz    (make help explains)

PREFIX ?= /usr/local
DESTDIR ?=
# mount(8) looks for its helpers in /sbin alone, which is /usr/sbin on today's systems.
SBINDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/usr/sbin,$(PREFIX)/sbin)

CARGO ?= cargo
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
NILFS := $(RELEASE)/nilfs
DEB_DIR := $(or $(CARGO_TARGET_DIR),target)/debian

# For make run and make stop.
IMAGE ?= volume.img
SIZE ?= 4G
DIR ?= mnt

# For make check: the integration tests that take seconds. The others need a real Linux, other file
# systems' programs, or minutes.
QUICK_TESTS := bad_input config control copies defrag docs drop_ins handles host_full hostile interrupted \
	json listings mapped_on_full messages operands \
	mkfs mount mount_end outputs private recover refused_segments resize transport \
	claims loop_device \
	clean_volumes damaged_files damaged_metadata hostile_images unclean_volumes \
	cleaning cleaning_faults cleaning_readers clocks cost defragmenting life linux_images memory recovery free_space \
	superblocks trees rollback purge faults nearly_full synced unmounting blast_radius verifying \
	posix

# For make fuzz: seconds for each target.
FUZZ_SECONDS ?= 10

# For make torture: how long, and other options of nilfs-torture; and how often the process of a mount is
# killed, which takes root.
TORTURE_MINUTES ?= 10
TORTURE_OPTIONS ?=
TORTURE_KILLS ?= 1000

# For make torture: options of nilfs-blast; without any, every block is damaged in every way.
BLAST_OPTIONS ?= --sample 10
NILFS_DEBUG := $(or $(CARGO_TARGET_DIR),target)/debug/nilfs

# For make soak: how long, and other options of nilfs-bench soak.
SOAK_MINUTES ?= 60
SOAK_OPTIONS ?=

# For make lab.
LAB_DIR ?= lab-results
LAB_OPTIONS ?=

# For make static: the tool chain's own target, or one of musl where the tool chain has it.
STATIC_TARGET ?= $(shell rustc -vV | sed -n 's/^host: //p')
STATIC_NILFS = $(or $(CARGO_TARGET_DIR),target)/$(STATIC_TARGET)/release/nilfs

.PHONY: build help run stop check test torture soak bench lab lint fuzz install uninstall deb static clean

build:
	$(CARGO) build --release -p nilfs

help:
	@echo 'make            build the release binary, $(NILFS)'
	@echo 'make run        make a volume in $(IMAGE) and mount it on ./$(DIR); then a short tour'
	@echo 'make stop       unmount it'
	@echo 'make check      format, clippy, unit tests and quick integration tests: before each commit'
	@echo 'make test       install what the tests need (as root) and run all of them'
	@echo 'make torture    cut the power of volumes for TORTURE_MINUTES=$(TORTURE_MINUTES), damage their blocks and kill mounts TORTURE_KILLS=$(TORTURE_KILLS) times'
	@echo 'make soak       work on a mount from 16 threads for SOAK_MINUTES=$(SOAK_MINUTES); nothing may grow'
	@echo 'make bench      compare speed with other file systems, in one table of ratios'
	@echo 'make lab        file systems side by side on modelled flash: the quick suite, into $(LAB_DIR)'
	@echo 'make lint       format, clippy and rustdoc, warnings as errors'
	@echo 'make fuzz       run each fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS)'
	@echo 'make install    install below PREFIX=$(PREFIX); DESTDIR for packagers'
	@echo 'make uninstall  take it away again'
	@echo 'make deb        Debian packages, in $(DEB_DIR)'
	@echo 'make static     a release binary that needs no library: $(STATIC_NILFS)'

run:
	@scripts/need run
	@$(MAKE) --no-print-directory build
	@scripts/run $(NILFS) $(IMAGE) $(SIZE) $(DIR)

stop:
	@if mountpoint -q $(DIR); then $(NILFS) umount $(DIR) && echo '$(DIR) is unmounted'; \
	else echo '$(DIR) is not mounted'; fi

# One run of cargo for all, with the features that make test has too, so that nothing is built twice.
check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) test --workspace --no-fail-fast --lib --bins $(QUICK_TESTS:%=--test %)
	$(CARGO) test --workspace --doc

test:
	@scripts/need test
	@scripts/need lab
	$(CARGO) test --workspace --no-fail-fast
	$(CARGO) test -p nilfs-sim --features shuttle --test interleavings

torture:
	$(CARGO) run --quiet -p nilfs-sim --bin nilfs-torture -- --minutes $(TORTURE_MINUTES) $(TORTURE_OPTIONS)
	$(CARGO) build --quiet -p nilfs
	$(CARGO) run --quiet -p nilfs-sim --bin nilfs-blast -- --nilfs $(NILFS_DEBUG) --runs 16 $(BLAST_OPTIONS)
	@if [ "$$(id -u)" -eq 0 ]; then NILFS_KILLS=$(TORTURE_KILLS) NILFS_SEED=$$(date +%s) \
		$(CARGO) test --quiet -p nilfs --test killed -- --nocapture; \
	else echo 'Mounts are killed by the superuser alone: sudo make torture'; fi

soak:
	@scripts/need run
	$(CARGO) build --release -p nilfs -p nilfs-bench
	$(RELEASE)/nilfs-bench soak --nilfs $(NILFS) --minutes $(SOAK_MINUTES) $(SOAK_OPTIONS)

bench:
	@scripts/need bench
	$(CARGO) build --release -p nilfs -p nilfs-lab -p nilfs-bench
	$(RELEASE)/nilfs-bench --nilfs $(NILFS)
	$(RELEASE)/nilfs-bench past --nilfs $(NILFS)
	$(RELEASE)/nilfs-bench checking --nilfs $(NILFS) --lab $(RELEASE)/nilfs-lab
	$(RELEASE)/nilfs-bench cleaning-latency
	$(RELEASE)/nilfs-bench write-amplification --policy cost-benefit

lab:
	@scripts/need lab
	$(CARGO) build --release -p nilfs -p nilfs-lab
	$(RELEASE)/nilfs-lab run --suite quick --nilfs $(NILFS) --out $(LAB_DIR) $(LAB_OPTIONS)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --check --manifest-path tools/fuzz/Cargo.toml
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p nilfs-sim --features shuttle --all-targets -- -D warnings
	$(CARGO) run --quiet -p nilfs-shape
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps

fuzz:
	@scripts/need test
	@scripts/fuzz $(FUZZ_SECONDS)

# Root often has no cargo: "make && sudo make install" takes the binary that is there.
install:
	@if command -v $(CARGO) >/dev/null; then $(CARGO) build --release -p nilfs -p nilfs-lab; fi
	@scripts/install $(NILFS) '$(DESTDIR)' '$(PREFIX)' '$(SBINDIR)'

uninstall:
	@scripts/install --remove '$(DESTDIR)' '$(PREFIX)' '$(SBINDIR)'

# What debhelper leaves in debian/ goes away again.
deb:
	@scripts/need deb
	$(CARGO) build --release -p nilfs -p nilfs-lab
	debian/rules binary NILFS=$(NILFS) DEB_DIR=$(DEB_DIR)
	@debian/rules clean >/dev/null
	@ls $(DEB_DIR)/*.deb

static:
	RUSTFLAGS='-C target-feature=+crt-static' \
		$(CARGO) build --release -p nilfs --target $(STATIC_TARGET)
	@ls $(STATIC_NILFS)

clean:
	$(CARGO) clean
