package debian

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestEveryLineOfTheListIsWhole(t *testing.T) {
	known := []Step{Build, Images, Run, CRIO, "test", "kernel", "kernels", "fresh", "e2e", "release", "race"}
	var names []string
	for _, p := range parse(text) {
		names = append(names, p.Name+" "+p.File)
		if !filepath.IsAbs(p.File) || p.Why == "" {
			t.Errorf("%s does not say which file it is wanted for and why", p.Name)
		}
		for _, s := range p.Steps {
			if !slices.Contains(known, s) {
				t.Errorf("%s is for the unknown step %q", p.Name, s)
			}
		}
	}
	slices.Sort(names)
	if len(names) == 0 || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("repeats in %v", names)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if !strings.HasPrefix(line, "#") && len(strings.Fields(line)) < 4 {
			t.Errorf("%q: want package, file, steps and reason", line)
		}
	}
}

// runc finds libseccomp with pkg-config: a machine with a filled build cache does not show that it is missing.
func TestProgramsInCGetTheirTools(t *testing.T) {
	for _, want := range []string{"gcc", "libc6-dev", "libseccomp-dev", "pkg-config"} {
		if !slices.Contains(Names(Build), want) {
			t.Errorf("%s is not among the packages of %s", want, Build)
		}
	}
}

func TestMissingNamesOnlyWhatIsMissingAndTheCommand(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	here := Package{Name: "here", File: "/proc/self/exe", Why: "x"}
	err := missing([]Package{here, {Name: "absent", File: gone, Why: "tests want it"}})
	if err == nil {
		t.Fatal("no error for a missing file")
	}
	for _, want := range []string{"absent: no " + gone, "tests want it", "apt-get install --no-install-recommends -y absent"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "here") {
		t.Errorf("error names a package that is there: %v", err)
	}
	if err := missing([]Package{here, {Name: "either", File: gone + "|/proc/self/exe", Why: "x"}}); err != nil {
		t.Errorf("nothing missing: %v", err)
	}
}
