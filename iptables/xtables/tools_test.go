package xtables

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// linked makes a folder that has only links, by name, to the programs of one of iptables' two binaries.
func linked(t *testing.T, binary string, names ...string) string {
	t.Helper()
	target, dir := kerneltest.ProgramPath(t, binary), t.TempDir()
	for _, name := range names {
		for _, suffix := range []string{"", "-restore", "-save"} {
			if err := os.Symlink(target, filepath.Join(dir, name+suffix)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// The node's own tables of iptables-legacy, in the machine's network namespace.
func legacyOfTheNode() string {
	return strings.Join(legacyTables("/proc/self/net", iptables.IPv4, iptables.IPv6), " ")
}

// needsNodeWithoutLegacy fails a test on a node with such tables, which no test may make. Before Linux 5.15 the first use of a table anywhere makes it
// on the node, too.
func needsNodeWithoutLegacy(t *testing.T) {
	t.Helper()
	identity, err := kerneltest.New(t).Identity()
	if err != nil {
		t.Fatal(err)
	}
	switch names := legacyOfTheNode(); {
	case names == "":
	case identity.Cookie == 0: // cookies came with Linux 5.14
		kerneltest.SkipOrFail(t, "this kernel makes tables of iptables-legacy on the node, too: it is older than Linux 5.15")
	default:
		t.Fatalf("this machine has tables of iptables-legacy (%s), which no test may make", names)
	}
}

func TestDetectTakesTheNftFlavourAndMakesNoLegacyTable(t *testing.T) {
	needsNodeWithoutLegacy(t)
	kerneltest.ProgramPath(t, "iptables-nft-restore")
	b, reason, err := Detect(t.Context(), Config{}, rules(t, tproxyAndDNS))
	if err != nil {
		t.Fatal(err)
	}
	if b.programs.flavour != NFT || !strings.Contains(reason, "nft flavour") || !strings.Contains(reason, "no tables of the legacy one") {
		t.Errorf("%s, %q", b.programs.flavour, reason)
	}
	if after := legacyOfTheNode(); after != "" {
		t.Errorf("tables came into being: %s", after)
	}
}

func TestPreference_legacyTablesOfTheNode_comeFirst(t *testing.T) {
	if order, why := preference([]string{"nat", "filter"}); order[0] != Legacy || !strings.Contains(why, "nat, filter") {
		t.Error(order, why)
	}
	if order, _ := preference(nil); order[0] != NFT {
		t.Error(order)
	}
	ns := kerneltest.New(t)
	kerneltest.ProgramPath(t, "ip6tables-legacy")
	shell(t, ns, "ip6tables-legacy -t mangle -N X")
	err := ns.Inside(func() error {
		if names := legacyTables(ownProc, iptables.IPv4, iptables.IPv6); strings.Join(names, " ") != "mangle" {
			t.Errorf("tables %q", names)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestProgramsAreFoundByAnyOfTheirNames(t *testing.T) {
	needsNodeWithoutLegacy(t)
	cases := map[string]struct {
		binary string
		names  []string
		want   Flavour
		reason string
	}{
		"legacy alone, by its name":   {"xtables-legacy-multi", []string{"iptables-legacy", "ip6tables-legacy"}, Legacy, "-nft-restore"},
		"legacy alone, by plain name": {"xtables-legacy-multi", []string{"iptables", "ip6tables"}, Legacy, "-nft-restore"},
		"nft by plain name":           {"xtables-nft-multi", []string{"iptables", "ip6tables"}, NFT, "no tables"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", linked(t, c.binary, c.names...))
			b, reason, err := Detect(t.Context(), Config{}, rules(t, nil))
			if err != nil {
				t.Fatal(err)
			}
			if b.programs.flavour != c.want || !strings.Contains(reason, c.reason) {
				t.Errorf("%s, %q", b.programs.flavour, reason)
			}
		})
	}
}

// The image without iptables can tell that there are rules of the nft flavour, and takes them away. It says what it lacks to make some.
func TestWithoutProgramsTheMissingOneIsNamed(t *testing.T) {
	ns := kerneltest.New(t)
	mustApply(t, newBackend(t, NFT), ns, rules(t, nil))
	legacy := kerneltest.New(t)
	mustApply(t, newBackend(t, Legacy), legacy, rules(t, nil))
	t.Setenv("PATH", t.TempDir())
	b := newByPath(t, Config{Flavour: NFT})
	if present, err := b.Present(t.Context(), ns.Path()); err != nil || !present {
		t.Error(present, err)
	}
	if removed, err := b.Yield(t.Context(), ns.Path()); err != nil || !removed {
		t.Errorf("removed %v, error %v", removed, err)
	}
	_, errApply := b.Apply(t.Context(), ns.Path(), rules(t, nil))
	_, errProbe := b.own.Probe(t.Context(), rules(t, nil))
	_, _, errDetect := Detect(t.Context(), Config{}, rules(t, nil))
	for _, err := range []error{errApply, errProbe, errDetect} {
		if err == nil || !strings.Contains(err.Error(), "-nft-restore") {
			t.Errorf("%v does not name the program", err)
		}
	}
	b = newByPath(t, Config{Flavour: Legacy})
	if removed, err := b.Yield(t.Context(), legacy.Path()); err != nil || removed {
		t.Errorf("removed %v, error %v: what cannot be looked into is not known to be ours", removed, err)
	}
}

func TestProgramsThatAreTooOldAreRefused(t *testing.T) {
	dir := t.TempDir()
	for version, want := range map[string]string{"1.4.21": "1.6.2 or newer", "1.6.1": "1.6.2 or newer", "1.6.2": "", "1.8.9 (nf_tables)": ""} {
		tool := tools{iptables: script(t, dir, "iptables", "echo 'iptables v"+version+"'")}
		got, err := tool.version()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || !strings.HasPrefix(version, got) {
			t.Errorf("%s: version %s, error %v", version, got, err)
		}
	}
}

// To look, in either flavour, makes no legacy table; to program with the nft flavour does not either.
func TestNoLegacyTableComesIntoBeing(t *testing.T) {
	ns := kerneltest.New(t)
	expectNone := func(step string) {
		t.Helper()
		if names := legacyNames(t, ns); names != "" {
			t.Fatalf("%s made tables: %s", step, names)
		}
	}
	for _, flavour := range flavours() {
		b := newBackend(t, flavour)
		_, errVerify := b.Verify(t.Context(), ns.Path(), rules(t, nil))
		_, errPresent := b.Present(t.Context(), ns.Path())
		_, _, errRead := b.List(t.Context(), ns.Path())
		_, errRemove := b.Remove(t.Context(), ns.Path())
		_, errYield := b.Yield(t.Context(), ns.Path())
		for _, err := range []error{errVerify, errPresent, errRead, errRemove, errYield} {
			if err != nil {
				t.Error(err)
			}
		}
		expectNone("looking with " + string(flavour))
	}
	mustApply(t, newBackend(t, NFT), ns, rules(t, tproxyAndDNS))
	expectNone("the nft flavour")
}

func TestEnviron_lockOutOfReach_isTheInput(t *testing.T) {
	t.Setenv("XTABLES_LOCKFILE", "")
	missing := filepath.Join(t.TempDir(), "no", "lock")
	if env := environ(missing); !strings.HasSuffix(strings.Join(env, "\n"), "\nXTABLES_LOCKFILE=/proc/self/fd/0") {
		t.Error("no lock file, and none said")
	}
	if env := environ(filepath.Join(t.TempDir(), "lock")); len(env) != len(os.Environ()) {
		t.Error("the usual lock can be had, and another one is said")
	}
	ns, b := kerneltest.New(t), newBackend(t, Legacy)
	b.own.programs.environ = environ(missing)
	mustApply(t, b, ns, rules(t, nil))
	mustHold(t, b, ns, rules(t, nil))
	if version, err := b.own.Probe(t.Context(), rules(t, nil)); err != nil || version == "" {
		t.Error(version, err)
	}
	t.Setenv("XTABLES_LOCKFILE", "/elsewhere")
	if env := environ(missing); len(env) != len(os.Environ()) {
		t.Error("the user's lock is overruled")
	}
}
