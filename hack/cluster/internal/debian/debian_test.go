package debian

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAllHasEveryPackageOnce(t *testing.T) {
	all := All()
	for _, n := range []Need{Build, Images, Run} {
		for _, p := range Packages(n) {
			if !slices.Contains(all, p.Name) {
				t.Errorf("%s is not in All", p.Name)
			}
			if p.File == "" || p.Why == "" {
				t.Errorf("%s does not say which file it is wanted for and why", p.Name)
			}
		}
	}
	slices.Sort(all)
	if u := slices.Compact(slices.Clone(all)); len(u) != len(all) {
		t.Errorf("repeats in %v", all)
	}
}

func TestMissingNamesOnlyWhatIsMissingAndTheCommand(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	err := missing([]Package{{"here", "/proc/self/exe", "x"}, {"absent", gone, "tests want it"}})
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
	if err := missing([]Package{{"here", "/proc/self/exe", "x"}}); err != nil {
		t.Errorf("nothing missing: %v", err)
	}
}
