package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Source is where a kernel comes from, and the machine that boots it.
type Source struct {
	// Suite is a release of Debian, Arch a processor as Debian and Go name it.
	Suite, Arch string
	// Programs are packages whose programs the machine has, with all that they depend on. Without them it has the host's file tree.
	Programs string
	// QEMU are the emulator and its arguments, Console is the kernel's name of the serial line.
	QEMU    []string
	Console string
}

// programs are what tests run: see hack/cluster/internal/debian/packages.txt, step "kernel".
const programs = "iptables nftables iproute2 busybox-static conntrack haproxy libnginx-mod-stream nginx kmod dash coreutils grep sed procps util-linux"

// alternatives are the links that Debian's packages make when they are installed.
func alternatives() map[string]string {
	links := map[string]string{"usr/bin/awk": "/bin/busybox"}
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		links["usr/sbin/"+name] = "xtables-nft-multi"
	}
	return links
}

// sources lists all kernels.
func sources() map[string]Source {
	pc := func(suite string) Source {
		return Source{Suite: suite, Arch: "amd64", QEMU: []string{"qemu-system-x86_64", "-machine", "pc", "-cpu", "max"}, Console: "ttyS0"}
	}
	return map[string]Source{
		"5.10": pc("bullseye"), "6.1": pc("bookworm"), "6.12": pc("trixie"),
		"s390x": {"bookworm", "s390x", programs, []string{"qemu-system-s390x", "-machine", "s390-ccw-virtio", "-cpu", "max"}, "ttysclp0"},
		"arm64": {"bookworm", "arm64", programs, []string{"qemu-system-aarch64", "-machine", "virt", "-cpu", "max,pauth-impdef=on"}, "ttyAMA0"},
	}
}

// Kernel is an unpacked kernel package, with the programs of its source.
type Kernel struct {
	Source
	// Series is what the kernel is asked for by, Release what it calls itself, Package Debian's version.
	Series, Release, Package string
	Directory                string
}

// Image is the file that boots.
func (k Kernel) Image() string { return filepath.Join(k.Directory, "boot/vmlinuz-"+k.Release) }

// Modules is the directory of the kernel's modules on the host.
func (k Kernel) Modules() string { return filepath.Join(k.Directory, "lib/modules", k.Release) }

// Tree is the directory of the host that is the machine's root.
func (k Kernel) Tree() string {
	if k.Programs != "" {
		return k.Directory
	}
	return "/"
}

// apt is what a directory of its own needs for apt-get to know one suite and nothing of the machine's sources.
const apt = `Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "%[1]s/lists";
Dir::Cache "%[1]s/cache";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
APT::Sandbox::User "";
APT::Architecture "%[2]s";
APT::Architectures { "%[2]s"; };
Dir::State::status "%[1]s/status";
Debug::NoLocking "1";
`

// fetch returns Debian's kernel of a series. The first time it downloads the package, by name and signed, into a directory of the
// cache; remove the directory to get a newer package.
func fetch(ctx context.Context, cache, series string) (Kernel, error) {
	source, ok := sources()[series]
	if !ok {
		return Kernel{}, fmt.Errorf("no kernel %q: there are %q", series, slices.Sorted(maps.Keys(sources())))
	}
	k := Kernel{Source: source, Series: series, Directory: filepath.Join(cache, "kernels", series)}
	if _, err := os.Stat(k.Directory); errors.Is(err, os.ErrNotExist) {
		partial := k.Directory + ".partial"
		err := errors.Join(os.RemoveAll(partial), download(ctx, source, partial))
		if err == nil {
			err = os.Rename(partial, k.Directory)
		}
		if err != nil {
			return Kernel{}, fmt.Errorf("get kernel %s of Debian %s: %w", series, source.Suite, err)
		}
	}
	names, err := filepath.Glob(filepath.Join(k.Directory, "linux-image-*.deb"))
	if err != nil || len(names) != 1 {
		return Kernel{}, fmt.Errorf("want one package linux-image in %s, there are %q (%w)", k.Directory, names, err)
	}
	// NAME_VERSION_ARCHITECTURE.deb
	parts := strings.Split(filepath.Base(names[0]), "_")
	k.Release, k.Package = strings.TrimPrefix(parts[0], "linux-image-"), parts[1]
	return k, nil
}

// unpack unpacks the kernel, or all packages if there are programs. None of their scripts runs.
func unpack(ctx context.Context, from Source, packages []string, dir string) (err error) {
	links := map[string]string{}
	if from.Programs != "" {
		links = alternatives()
		if packages, err = filepath.Glob(filepath.Join(filepath.Dir(packages[0]), "*.deb")); err != nil {
			return err
		}
	}
	for _, deb := range packages {
		if _, err := output(ctx, dir, "dpkg-deb", "-x", deb, dir); err != nil {
			return err
		}
	}
	for link, program := range links {
		err = errors.Join(err, os.Symlink(program, filepath.Join(dir, link)))
	}
	return err
}

func download(ctx context.Context, from Source, dir string) error {
	mirror := os.Getenv("DEBIAN_MIRROR")
	if mirror == "" {
		mirror = "http://deb.debian.org/debian"
	}
	private := filepath.Join(dir, "apt")
	source := fmt.Sprintf("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", mirror, from.Suite)
	err := errors.Join(
		os.MkdirAll(filepath.Join(private, "lists/partial"), 0o755),
		os.MkdirAll(filepath.Join(private, "cache/archives/partial"), 0o755),
		os.WriteFile(filepath.Join(private, "sources.list"), []byte(source), 0o600),
		os.WriteFile(filepath.Join(private, "status"), nil, 0o600),
		os.WriteFile(filepath.Join(private, "apt.conf"), fmt.Appendf(nil, apt, private, from.Arch), 0o600),
	)
	if err != nil {
		return err
	}
	get := append([]string{"-q", "-y", "--download-only", "--no-install-recommends", "install", "linux-image-" + from.Arch}, strings.Fields(from.Programs)...)
	for _, arguments := range [][]string{{"-q", "update"}, get} {
		if _, err := output(ctx, private, "apt-get", arguments...); err != nil {
			return err
		}
	}
	// The package that is asked for only depends on the kernel's.
	kernels, err := filepath.Glob(filepath.Join(private, "cache/archives/linux-image-[0-9]*.deb"))
	if err != nil || len(kernels) != 1 {
		return fmt.Errorf("apt-get left %q (%w)", kernels, err)
	}
	if err := unpack(ctx, from, kernels, dir); err != nil {
		return err
	}
	// Newer packages have /usr/lib/modules.
	if _, err := os.Stat(filepath.Join(dir, "lib")); errors.Is(err, os.ErrNotExist) {
		if err := os.Symlink("usr/lib", filepath.Join(dir, "lib")); err != nil {
			return err
		}
	}
	name := filepath.Base(kernels[0])
	release, _, _ := strings.Cut(strings.TrimPrefix(name, "linux-image-"), "_")
	if _, err := output(ctx, dir, "/sbin/depmod", "-b", dir, release); err != nil {
		return err
	}
	return errors.Join(os.Rename(kernels[0], filepath.Join(dir, name)), os.RemoveAll(private))
}

// output runs a program in a directory, which may have an apt.conf of its own.
func output(ctx context.Context, dir, name string, arguments ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, arguments...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(dir, "apt.conf"), "LC_ALL=C")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
