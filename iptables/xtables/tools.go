package xtables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"

	"istio-pod-network-controller/iptables"
)

// Flavour is one of the two implementations of iptables. Neither sees the rules of the other.
type Flavour string

// The flavours: NFT keeps its tables in nf_tables, Legacy in x_tables.
const (
	NFT    Flavour = "nft"
	Legacy Flavour = "legacy"
)

// ErrMissing means that the programs of a flavour are not installed.
var ErrMissing = errors.New("not installed")

// tools are the programs of one family.
type tools struct{ restore, save, iptables string }

// families returns the families, with the first part of their programs' names.
func families() map[uint32]string {
	return map[uint32]string{iptables.IPv4: "iptables", iptables.IPv6: "ip6tables"}
}

// find looks for the programs of a flavour: those with the flavour in their name, else the plain ones if they are of that flavour.
func find(ctx context.Context, flavour Flavour) (map[uint32]tools, error) {
	found := map[uint32]tools{}
	for _, family := range []uint32{iptables.IPv4, iptables.IPv6} {
		name := families()[family]
		t, err := findNamed(name + "-" + string(flavour))
		if err != nil {
			plain, errPlain := findNamed(name)
			if errPlain == nil && flavourOf(ctx, plain.restore) == flavour {
				t, err = plain, nil
			}
		}
		if err != nil {
			return nil, fmt.Errorf("iptables of the %s flavour is %w: %w", flavour, ErrMissing, err)
		}
		found[family] = t
	}
	return found, nil
}

func findNamed(name string) (t tools, err error) {
	var errRestore, errSave error
	t.restore, errRestore = exec.LookPath(name + "-restore")
	t.save, errSave = exec.LookPath(name + "-save")
	t.iptables, err = exec.LookPath(name)
	return t, cmp.Or(errRestore, errSave, err)
}

// flavourOf runs a program with --version to learn its flavour. A program that names none is older than the flavours: legacy.
func flavourOf(ctx context.Context, program string) Flavour {
	ctx, cancel := context.WithTimeout(ctx, processTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	switch {
	case err != nil:
		return ""
	case strings.Contains(string(out), "nf_tables"):
		return NFT
	}
	return Legacy
}

// version returns the version of the programs, as go-iptables finds it out. Older ones than 1.6.2 are refused.
func (t tools) version() (string, error) {
	lib, err := goiptables.New(goiptables.Path(t.iptables))
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", t.iptables, err)
	}
	v1, v2, v3 := lib.GetIptablesVersion()
	version := fmt.Sprintf("%d.%d.%d", v1, v2, v3)
	if v1 < 1 || v1 == 1 && (v2 < 6 || v2 == 6 && v3 < 2) {
		return version, fmt.Errorf("%s is version %s: want 1.6.2 or newer, which can wait for its lock", t.iptables, version)
	}
	return version, nil
}

// Detect chooses the flavour for this node, tests it with a sample, and returns why it was chosen: nft, unless the node itself has
// legacy tables. It finds that out by reading files; running iptables-legacy would make the tables.
func Detect(ctx context.Context, config Config, sample iptables.Ruleset) (*Backend, string, error) {
	order, why := preference(legacyTables("/proc/self/net", iptables.IPv4, iptables.IPv6))
	var errs []error
	for _, config.Flavour = range order {
		b := New(ctx, config)
		version, err := b.Probe(ctx, sample)
		if err == nil {
			return b, fmt.Sprintf("iptables %s of the %s flavour; %s", version, config.Flavour, why), nil
		}
		errs = append(errs, err)
		why = err.Error()
	}
	return nil, "", errors.Join(errs...)
}

// preference orders the flavours: legacy first if the node has legacy tables.
func preference(legacy []string) (order []Flavour, why string) {
	if len(legacy) > 0 {
		return []Flavour{Legacy, NFT}, "this node has tables of the legacy one: " + strings.Join(legacy, ", ")
	}
	return []Flavour{NFT, Legacy}, "this node has no tables of the legacy one"
}

// legacyTables returns the tables of iptables-legacy in a network namespace, which proc shows.
func legacyTables(proc string, families ...uint32) []string {
	var names []string
	for _, family := range families {
		file := map[uint32]string{iptables.IPv4: "ip_tables_names", iptables.IPv6: "ip6_tables_names"}[family]
		// Without the kernel module there is no such file, and no table.
		if data, err := os.ReadFile(filepath.Join(proc, file)); err == nil {
			names = append(names, strings.Fields(string(data))...)
		}
	}
	return names
}
