// Package debian is the one list of Debian packages that the cluster needs.
package debian

import (
	"fmt"
	"os"
	"strings"
)

// Package is needed for one file in it; the file's presence is the check, so that other distributions work too.
type Package struct {
	Name string
	File string
	Why  string
}

// Need says which step of the kit wants the package.
type Need string

// The steps.
const (
	Build  Need = "build"
	Images Need = "images"
	Run    Need = "up"
)

// Packages lists what one step needs.
func Packages(n Need) []Package {
	switch n {
	case Build:
		return []Package{
			{"gcc", "/usr/bin/gcc", "runc is built with cgo"},
			{"libc6-dev", "/usr/include/stdio.h", "runc is built with cgo"},
			{"libseccomp-dev", "/usr/include/seccomp.h", "runc applies containerd's seccomp profile"},
		}
	case Images:
		return []Package{
			{"busybox-static", "/bin/busybox", "shell of the tools image"},
			{"conntrack", "/usr/sbin/conntrack", "tools image"},
			{"haproxy", "/usr/sbin/haproxy", "sidecar image"},
			{"iproute2", "/bin/ip", "tools image"},
			{"iptables", "/usr/sbin/xtables-nft-multi", "tools image"},
			{"nftables", "/usr/sbin/nft", "tools image"},
		}
	default:
		return []Package{
			{"nftables", "/usr/sbin/nft", "kube-proxy runs it"},
		}
	}
}

// All is every package, by name, without repeats.
func All() []string {
	var names []string
	seen := map[string]bool{}
	for _, n := range []Need{Build, Images, Run} {
		for _, p := range Packages(n) {
			if !seen[p.Name] {
				seen[p.Name] = true
				names = append(names, p.Name)
			}
		}
	}
	return names
}

// Check names every package of the given steps whose file is missing, and the command that installs them.
func Check(needs ...Need) error {
	var packages []Package
	for _, n := range needs {
		packages = append(packages, Packages(n)...)
	}
	return missing(packages)
}

// missing names all at once, so that one apt-get call is enough.
func missing(packages []Package) error {
	var names, why []string
	for _, p := range packages {
		if _, err := os.Stat(p.File); err != nil {
			names = append(names, p.Name)
			why = append(why, fmt.Sprintf("  %s: no %s (%s)", p.Name, p.File, p.Why))
		}
	}
	if names == nil {
		return nil
	}
	return fmt.Errorf("missing packages:\n%s\ninstall them with: apt-get install --no-install-recommends -y %s",
		strings.Join(why, "\n"), strings.Join(names, " "))
}
