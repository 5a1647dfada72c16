# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The front door. Everything but `KDIR=… modules` runs in a build root of its own, which the first call makes in the
# cache (${XDG_CACHE_HOME:-~/.cache}/auxpmu).

.DEFAULT_GOAL := help
.PHONY: help demo test bench figures coverage fuzz check litmus kbuild kunit e2e matrix beside disk old selftests stress exact break conform adversary mutants verify aarch64 golden viewers debug modules tools install shell guest trace programs rust-analyzer kernels update clean clean-cache

ROOT := tools/vm/root.sh
# A profile of its own: auxvm only waits for others, and the first call waits for its build.
AUXVM := $(ROOT) run cargo run --quiet --locked --manifest-path $(CURDIR)/tools/Cargo.toml -p vm --profile vm \
	--config 'profile.vm.inherits="dev"' --config 'profile.vm.debug=0' --config 'profile.vm.package."*".opt-level=0' --
# A value from the user as one word of the shell.
quote = '$(subst ','\'',$1)'
# OPTION VALUE, if there is a value.
option = $(if $2,$1 $(call quote,$2))
# The same for a list: one option for each word.
options = $(foreach word,$2,$1 $(call quote,$(word)))
CASES := $(call option,--case,$(CASE))

define HELP
auxpmu: Linux perf PMU drivers with AUX buffers, in Rust

Start
  make demo           record traces on a stock Debian kernel, check and draw them: build/demo/
  make test           run most layers of tests; the last line has the numbers of passed and failed cases
  make check          the fast part of them: format, lints, tests of the tools

Tests: one layer each (Documentation/testing.md)
  make litmus         the barriers of the AUX area under the kernel's memory model (herd7)
  make kbuild         the modules build without a warning; their callbacks cannot panic
  make kunit          unit tests of the modules
  make e2e            recorder, drivers and kernel together
  make matrix         each sink of pattern in each mode, with AUX areas and readers of each kind
  make beside         the recorder beside stock perf, on the same driver
  make disk           recordings to slow and failing disks, and with a loss of power
  make old            recorder, tracering and conform on Debian's kernel 6.1
  make selftests      the kernel's own tests of tracefs and perf, with our PMUs
  make stress         Debian's stress-ng counts perf's events while our PMUs trace it
  make exact          decoders show exactly what was executed
  make golden         the recorder beside stock perf, on described machines with other hardware
  make break          pattern with defects: the matrix must name each
  make conform        perf's contract, from user space: our PMUs, a C driver, 28 defects of it
  make aarch64        the tools for 64-bit Arm, under an emulator
  make viewers        Perfetto and speedscope show the exports; downloads a browser
  make debug          kunit and e2e on a kernel with lockdep, KASAN and failing allocations

Campaigns
  make adversary      random programs of system calls on the debug kernel; SECONDS=600 SEED=1
                      OPERATIONS=1000000: so many, on units that start and stop at once
  make fuzz           the fuzz targets under libFuzzer; SECONDS=60 for each
  make mutants        make lines wrong, one at a time: a suite must find each
  make verify         everything on all kernels, for many hours: build/verify/report.html
                      PART="debug-e2e bench": only these parts
                      SINCE=COMMIT: also count what passed on that commit or a later one

Measurements
  make bench          costs in guest instructions; PART=driver, steps, tracing, restart, ring,
                      reading, recorder, parallel or starts: only this part
  make figures        Documentation/figures.md from the last bench, campaign.md from the last verify
  make coverage       Documentation/intel-pt-coverage.md and recorder-and-perf.md from the last tests

Builds
  make modules        the modules for both kernels: build/modules/
  make KDIR=/lib/modules/$$(uname -r)/build modules    for your own kernel, with your own tools
  make tools          static programs, man pages, completions; ARCH=aarch64
  make install        install them; PREFIX=/usr/local DESTDIR= ARCH=
  make programs       the programs to trace: build/programs/
  make kernels        prepare both kernels
  make rust-analyzer  rust-project.json for your editor

Guests
  make shell          a guest on this terminal, with modules, perf and auxrec
  make guest CMD="…"  run one command in a guest
  make trace CMD="…"  record a guest from its kernel's first instruction on: build/trace/perf.data
                      KERNEL=/path/bzImage: your own kernel; VM=1: also as a virtual machine
                      DRAW=do_sys_openat2: draw the first call of that function
  Options: WITH="/usr/bin/perf …": programs to copy into the guest, of the build root or else yours
           TRACE=1: the trace unit
           CPUS=64; INTEL=1: an Intel processor; COUNTING=1: the clock counts instructions
           LINE="vdso=0": for the kernel's command line; SECONDS=600: time limit

Cache
  make update         use the newest kernel of the archive from now on
  make clean          remove what this checkout built
  make clean-cache    also remove the build root and the kernels

CASE="name|other": only these cases    KERNEL=stock|lean|debug|rt: only this kernel
KVER=7.3: another kernel version
endef

help:
	$(info $(HELP))
	@:

test:
	@$(AUXVM) test $(CASES)
	@$(ROOT) run $(ROOT) keep

check:
	@$(AUXVM) test --suite host $(CASES)

# Not a part of `test`: the kernel takes a quarter of an hour to build, and everything takes several times as long.
debug:
	@KERNEL=debug $(AUXVM) test --suite kunit --suite e2e $(CASES)

adversary:
	@$(AUXVM) adversary $(call option,--seconds,$(SECONDS)) $(call option,--operations,$(OPERATIONS)) $(call option,--seed,$(SEED))

mutants:
	@$(AUXVM) mutants $(CASES)

# The viewers need a build root of their own.
PARTS = $(call options,,$(PART)) $(call option,--since,$(SINCE))
verify:
	@$(AUXVM) verify $(PARTS); good=$$?; \
	$(if $(filter viewers,$(or $(PART),viewers)),RUNNER=viewers $(AUXVM) verify $(PARTS) || good=1;) \
	exit $$good

litmus kbuild kunit e2e matrix beside disk old selftests stress exact break conform aarch64 golden:
	@$(AUXVM) test --suite $@ $(CASES)

# It needs a browser, which comes with a build root of its own.
viewers:
	@RUNNER=viewers $(AUXVM) test --suite viewers

demo rust-analyzer update figures coverage:
	@$(AUXVM) $@

tools:
	@$(AUXVM) tools $(call option,--arch,$(ARCH))

# It builds nothing, so that root need not.
PREFIX ?= /usr/local
# The kernel's names of processors will do, too.
MACHINE := $(patsubst x86,x86_64,$(patsubst arm64,aarch64,$(or $(ARCH),x86_64)))
BUILT := build/target/$(MACHINE)-unknown-linux-gnu/release
PROGRAMS := $(call options,,$(addprefix $(BUILT)/,auxrec auxview tracering)) tools/auxrec/core-with-trace
TO := $(call quote,$(DESTDIR)$(PREFIX))
install:
	@test -f $(call quote,$(BUILT)/tracering) -a -f build/tools/man1/auxrec.1 -a -f build/tools/man1/auxview.1 || { echo $(call quote,error: nothing is built for $(MACHINE) yet: run "make tools$(ARCH:%= ARCH=%)" first) >&2; exit 1; }
	install -d $(TO)/bin $(TO)/share/man/man1 $(TO)/share/bash-completion/completions \
		$(TO)/share/zsh/site-functions $(TO)/share/fish/vendor_completions.d
	install -m 755 $(PROGRAMS) $(TO)/bin/
	install -m 644 build/tools/man1/*.1 $(TO)/share/man/man1/
	for program in auxrec auxview; do \
		install -m 644 build/tools/completions/$$program.bash $(TO)/share/bash-completion/completions/$$program && \
		install -m 644 build/tools/completions/_$$program $(TO)/share/zsh/site-functions/ && \
		install -m 644 build/tools/completions/$$program.fish $(TO)/share/fish/vendor_completions.d/ || exit 1; \
	done

shell:
	@$(AUXVM) shell $(if $(TRACE),--trace)

bench:
	@$(AUXVM) bench $(call options,,$(PART))

fuzz:
	@$(AUXVM) fuzz $(call option,--seconds,$(SECONDS)) $(CASES)

# The build root sees its own files and this folder: what else the user names is copied below build/.
IMAGE := $(if $(findstring /,$(KERNEL)),$(CURDIR)/build/bzImage)
FILES := $(abspath $(WITH))
define COPY
rm -rf build/with; $(ROOT) make && root=$$($(ROOT) path) && for file in $(call options,,$(FILES)); do \
	test -e "$$root$$file" || install -D -m 755 -- "$$file" "build/with$$file" || \
		{ echo "error: cannot take along $$file of WITH: it must be a file here or in the build root" >&2; exit 1; }; \
done
endef
GUEST = $(call options,--with,$(FILES)) $(call option,--cpus,$(CPUS)) $(call option,--append,$(LINE)) $(call option,--timeout,$(SECONDS))
trace:
	@$(if $(IMAGE),install -D -m 644 -- $(call quote,$(KERNEL)) $(call quote,$(IMAGE)))
	@$(if $(FILES),$(COPY))
	@$(if $(IMAGE),env -u KERNEL) $(AUXVM) trace $(call option,--image,$(IMAGE)) $(if $(VM),--vm) $(call option,--draw,$(DRAW)) $(GUEST) -- $(call quote,$(CMD))

guest:
	@$(if $(FILES),$(COPY))
	@$(AUXVM) guest $(if $(INTEL),--intel) $(if $(COUNTING),--counting) $(if $(TRACE),--trace) $(GUEST) -- $(call quote,$(CMD))

programs:
	@$(ROOT) run make -s -C $(CURDIR)/tools/e2e/programs O=$(CURDIR)/build/programs

kernels:
	@$(AUXVM) kernel stock lean

ifdef KDIR
modules clean:
	@tools/vm/kdir.sh $(call quote,$(KDIR))
	$(MAKE) -C $(call quote,$(KDIR)) M='$(CURDIR)' $@
else
modules:
	@$(AUXVM) modules

clean:
	rm -rf build
endif

clean-cache:
	@$(ROOT) remove
