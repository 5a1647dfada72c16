# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# The front door. Everything but `KDIR=… modules` runs in a build root of its own, which the first call makes in the
# cache (${XDG_CACHE_HOME:-~/.cache}/auxpmu).

.DEFAULT_GOAL := help
.PHONY: help demo test bench figures coverage fuzz check litmus kbuild kunit e2e matrix beside disk old selftests exact break conform adversary mutants verify aarch64 golden viewers debug modules tools install shell guest trace programs rust-analyzer kernels update clean clean-cache

ROOT := tools/vm/root.sh
# A profile of its own: auxvm only waits for others, and the first call waits for its build.
AUXVM := $(ROOT) run cargo run --quiet --locked --manifest-path $(CURDIR)/tools/Cargo.toml -p vm --profile vm \
	--config 'profile.vm.inherits="dev"' --config 'profile.vm.debug=0' --config 'profile.vm.package."*".opt-level=0' --
CASES := $(if $(CASE),--case '$(CASE)')

help:
	@echo 'auxpmu: Linux perf PMU drivers with AUX buffers, in Rust'
	@echo
	@echo '  make demo           record traces on a stock Debian kernel, check them, draw them: build/demo/'
	@echo '  make test           all tests; the last line says how many passed and failed'
	@echo
	@echo '  make check          the fast part of it: format, lints, tests of the tools'
	@echo '  make litmus         the barriers of the ring under the memory model of the kernel (herd7)'
	@echo '  make kbuild         the modules on both kernels, without a warning'
	@echo '  make kunit          the unit tests of the modules, in a guest'
	@echo '  make e2e            recorder and drivers in guests, and the matrix; CASE="name|other" for some cases only, RUNNER=vng for virtme-ng'
	@echo '  make matrix         each sink of pattern in each mode, with rings and readers of each kind; CASE="name|other" for some rows'
	@echo '  make beside         the recorder beside stock perf, on the same driver; CASE="name|other" for some cases'
	@echo '  make disk           recordings onto a disk that is slow, one that fails, and one whose machine loses its power'
	@echo '  make old            recorder and tracering on Debian'"'"'s kernel 6.1, which lacks what later ones have'
	@echo '  make selftests      the kernel'"'"'s own tests of mapped tracefs and of perf, on Debian'"'"'s kernel and with our units'
	@echo '  make exact          what decoders show of a trace is what was executed, by programs and the kernel; CASE="name|other" for some'
	@echo '  make break          defects put into pattern on purpose: rows of the matrix must name them'
	@echo '  make conform        perf'"'"'s contract of AUX areas, proved from user space: our units, a driver in C, and that with each of 28 defects'
	@echo '  make adversary      random programs of perf system calls on all units at once, on the debug kernel, until one does not do what a'
	@echo '                      model foresees; SECONDS=600, SEED=1'
	@echo '  make mutants        lines that are made wrong, one at a time: a suite must find each; CASE="name|other" for some'
	@echo '  make verify         everything, on all kernels, with fuzzers and benchmarks: many hours. It goes on where it was interrupted, and'
	@echo '                      writes build/verify/report.html; PART="debug-e2e bench" for some parts only; SINCE=COMMIT for a campaign'
	@echo '                      during which things are mended: what has passed on that commit or a later one counts'
	@echo '  make aarch64        the tools for 64-bit Arm, under an emulator of single programs'
	@echo '  make golden         the recorder beside stock perf, on described machines with Arm SPE, CoreSight, HiSilicon PTT, Intel PT and BTS;'
	@echo '                      CASE="name|other" for some cases'
	@echo '  make viewers        what Perfetto and speedscope show of exports; downloads a browser'
	@echo '  make debug          kunit and e2e on a kernel with lockdep, KASAN and kmemleak, whose allocations are made to fail; CASE="name|other"'
	@echo '  make bench          what a session of an event and recording cost, in guest instructions; PART=driver, steps, tracing, restart, ring, reading or recorder'
	@echo '                      for one of them, PART=parallel for how fast two processors are drained, PART=starts for how soon 64 are recorded'
	@echo '  make figures        Documentation/figures.md from the last bench, campaign.md from the last verify'
	@echo '  make coverage       Documentation/intel-pt-coverage.md, and the table of recorder-and-perf.md, from what the tests said last'
	@echo '  make fuzz           the parsers of files and options, and the trace unit, under libFuzzer; SECONDS=60 for each, CASE="name" for one'
	@echo '  make modules        build the modules for both kernels: build/modules/'
	@echo '  make tools          build the tools: static programs, man pages, completions; ARCH=aarch64 for 64-bit Arm'
	@echo '  make install        install what that has built, with the same ARCH; PREFIX=/usr/local, and below DESTDIR=… if that is given'
	@echo '  make shell          a guest on this terminal, with modules, perf and auxrec; TRACE=1 gives it the trace unit'
	@echo '  make guest CMD="…"  one command in a guest; WITH="/usr/bin/perf …" takes programs along, INTEL=1 makes the processor Intel'"'"'s'
	@echo '                      COUNTING=1 makes its clock count instructions, a nanosecond each; TRACE=1 gives it the trace unit'
	@echo '                      CPUS=64 gives it as many; LINE="vdso=0" is for the kernel, SECONDS=600 is how long it may take'
	@echo '  make trace CMD="…"  record a guest from outside, from its kernel'"'"'s first instruction on, for stock perf: build/trace/perf.data'
	@echo '                      KERNEL=/path/bzImage is your own kernel, CPUS=2 gives it two, VM=1 shows it as a virtual machine, too;'
	@echo '                      DRAW=do_sys_openat2 draws the first call of that function; WITH, LINE, SECONDS as above'
	@echo '  make programs       build the programs to trace: build/programs/'
	@echo '  make rust-analyzer  rust-project.json for your editor'
	@echo '  make kernels        prepare both kernels and no more'
	@echo '  make update         take the newest kernel of the archive from now on'
	@echo '  make clean          remove what this checkout built'
	@echo '  make clean-cache    remove the build root and the kernels too'
	@echo
	@echo '  KERNEL=stock|lean|debug|rt   only this kernel      KVER=7.3   another kernel version'
	@echo '  make KDIR=/lib/modules/$$(uname -r)/build modules   with your own kernel and your own tools'

test:
	@$(AUXVM) test $(CASES)
	@$(ROOT) run $(ROOT) keep

check:
	@$(AUXVM) test --suite host

# Not a part of `test`: the kernel takes a quarter of an hour to build, and everything takes several times as long.
debug:
	@KERNEL=debug $(AUXVM) test --suite kunit --suite e2e $(CASES)

adversary:
	@$(AUXVM) adversary $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

mutants:
	@$(AUXVM) mutants $(CASES)

# Some parts need a build root of their own.
verify:
	@$(AUXVM) verify $(PART) $(SINCE:%=--since %); good=$$?; \
	for runner in $(filter viewers vng,$(or $(PART),viewers vng)); do \
		RUNNER=$$runner $(AUXVM) verify $(PART) $(SINCE:%=--since %) || good=1; \
	done; exit $$good

litmus kbuild kunit matrix beside disk old selftests exact break conform aarch64 golden:
	@$(AUXVM) test --suite $@ $(CASES)

# It needs a browser, which comes with a build root of its own.
viewers:
	@RUNNER=viewers $(AUXVM) test --suite viewers

e2e:
	@$(AUXVM) test --suite e2e --suite matrix $(CASES)

demo rust-analyzer update figures coverage:
	@$(AUXVM) $@

tools:
	@$(AUXVM) tools $(ARCH:%=--arch %)

# It builds nothing, so that root need not.
PREFIX ?= /usr/local
# The kernel's names of processors will do, too.
MACHINE := $(patsubst x86,x86_64,$(patsubst arm64,aarch64,$(or $(ARCH),x86_64)))
BUILT := build/target/$(MACHINE)-unknown-linux-gnu/release
PROGRAMS := $(addprefix $(BUILT)/,auxrec auxview tracering) tools/auxrec/core-with-trace
TO := $(DESTDIR)$(PREFIX)
install:
	@test -f $(BUILT)/tracering -a -f build/tools/man1/auxrec.1 -a -f build/tools/man1/auxview.1 || { echo 'error: nothing is built for $(MACHINE) yet: run "make tools$(ARCH:%= ARCH=%)" first' >&2; exit 1; }
	install -d '$(TO)/bin' '$(TO)/share/man/man1' '$(TO)/share/bash-completion/completions' \
		'$(TO)/share/zsh/site-functions' '$(TO)/share/fish/vendor_completions.d'
	install -m 755 $(PROGRAMS) '$(TO)/bin/'
	install -m 644 build/tools/man1/*.1 '$(TO)/share/man/man1/'
	for program in auxrec auxview; do \
		install -m 644 build/tools/completions/$$program.bash '$(TO)/share/bash-completion/completions/'$$program && \
		install -m 644 build/tools/completions/_$$program '$(TO)/share/zsh/site-functions/' && \
		install -m 644 build/tools/completions/$$program.fish '$(TO)/share/fish/vendor_completions.d/' || exit 1; \
	done

shell:
	@$(AUXVM) shell $(if $(TRACE),--trace)

bench:
	@$(AUXVM) bench $(PART)

fuzz:
	@$(AUXVM) fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(CASES)

# The build root has only this folder: a kernel of the user's own is copied.
IMAGE := $(if $(findstring /,$(KERNEL)),$(CURDIR)/build/bzImage)
trace:
	@$(if $(IMAGE),install -D -m 644 '$(KERNEL)' '$(IMAGE)')
	@$(if $(IMAGE),env -u KERNEL) $(AUXVM) trace $(if $(IMAGE),--image '$(IMAGE)') $(if $(VM),--vm) $(if $(CPUS),--cpus $(CPUS)) $(if $(DRAW),--draw '$(DRAW)') $(WITH:%=--with %) $(if $(LINE),--append '$(LINE)') $(if $(SECONDS),--timeout $(SECONDS)) '$(CMD)'

guest:
	@$(AUXVM) guest $(WITH:%=--with %) $(if $(INTEL),--intel) $(if $(COUNTING),--counting) $(if $(TRACE),--trace) $(if $(CPUS),--cpus $(CPUS)) $(if $(LINE),--append '$(LINE)') $(if $(SECONDS),--timeout $(SECONDS)) '$(CMD)'

programs:
	@$(ROOT) run make -s -C $(CURDIR)/tools/e2e/programs O=$(CURDIR)/build/programs

kernels:
	@$(AUXVM) kernel stock lean

ifdef KDIR
modules clean:
	@tools/vm/kdir.sh '$(KDIR)'
	$(MAKE) -C '$(KDIR)' M='$(CURDIR)' $@
else
modules:
	@$(AUXVM) modules

clean:
	rm -rf build
endif

clean-cache:
	@$(ROOT) remove
