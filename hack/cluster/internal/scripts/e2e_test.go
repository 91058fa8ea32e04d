package scripts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A word that is not known used to run no test at all, and to pass.
func TestEndToEndRunNamesAWordThatItDoesNotKnow(t *testing.T) {
	for setting, want := range map[string]string{
		"E2E_BACKENDS=nftables iptable": `E2E_BACKENDS names "iptable": there are nftables iptables none`,
		"E2E_BACKENDS= ":                `E2E_BACKENDS names ""`,
		"E2E_RUNTIME=cri-o":             `E2E_RUNTIME names "cri-o": there are containerd crio`,
		"E2E_HOOKS=nir":                 `E2E_HOOKS names "nir": there are core nri required powercut wait cni lifecycle istio kubernetes nodes`,
	} {
		cmd := exec.CommandContext(t.Context(), "../../../e2e.sh")
		// On a machine where nothing more could happen.
		cmd.Env = []string{"PATH=" + fakes(t, machine{uid: "7"}, ""), "HOME=" + t.TempDir(), setting}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: error %v and %q, want %q", setting, err, out, want)
		}
	}
}

// testProgram prints what a file beside it says for each run in turn, notes its arguments, and fails if the last line says so. How the node is
// before the first run does not count.
const testProgram = `#!/bin/bash
if [[ -n $E2E_RECORD ]]; then exit; fi
echo "$E2E_BACKEND: $@" >>"${0%/*}/arguments"
run=$(wc -l <"${0%/*}/arguments")
cat "${0%/*}/run$run"
! grep -q "^FAIL$\|^panic" "${0%/*}/run$run"
`

// clusterProgram notes what is deleted in a file beside it.
const clusterProgram = `#!/bin/bash
if [[ $1 == exec ]]; then shift 2; exec "$@"; fi
if [[ $2 == delete ]]; then echo "$@" >>"${0%/*}/deleted"; fi
`

// A test that fails beside others runs again alone, which says whether others disturb it. Either way it is a failure.
func TestEndToEndRun_testFailsBesideOthers_runsAgainAloneAndFails(t *testing.T) {
	const (
		good   = "--- PASS: TestZ (1.00s)\n"
		itself = "--- FAIL: TestA (2.00s)\n    --- FAIL: TestA/part (1.00s)\n"
		failed = good + itself
		passed = "--- PASS: TestA (1.00s)\nPASS\n"
		end    = "FAIL\n"
	)
	for name, c := range map[string]struct {
		runs []string
		ok   bool
		want string
	}{
		"nothing fails":              {runs: []string{good + "PASS\n"}, ok: true},
		"one had none beside it":     {runs: []string{itself + end}},
		"one fails, and passes":      {runs: []string{failed + end, passed}, want: "e2e: TestA (nftables) has failed beside others, and passes alone\n"},
		"one fails again":            {runs: []string{failed + end, itself + end}, want: "e2e: TestA (nftables) has failed beside others, and alone\n"},
		"one does not run again":     {runs: []string{failed + end, "PASS\n"}, want: "e2e: TestA (nftables) has failed beside others, and alone\n"},
		"one fails behind its words": {runs: []string{good + "words without an end" + itself + good + end, passed}, want: "TestA (nftables) has failed beside others, and passes alone\n"},
		"four fail":                  {runs: []string{failed + "--- FAIL: TestB (1s)\n--- FAIL: TestC (1s)\n--- FAIL: TestD (1s)\n" + end}},
		"some have not run":          {runs: []string{failed + "panic: test timed out after 15m0s\n"}},
		"a benchmark fails, too":     {runs: []string{failed + "--- FAIL: BenchmarkA\n" + end}},
		"none is named":              {runs: []string{end}},
	} {
		t.Run(name, func(t *testing.T) {
			out, asked, deleted, err := endToEndRun(t, c.runs)
			if (err == nil) != c.ok || !strings.Contains(out, c.want) || len(asked) != len(c.runs) {
				t.Errorf("runs %q, error %v, and\n%s", asked, err, out)
			}
			for _, text := range c.runs {
				if !strings.Contains(out, text) {
					t.Errorf("the output of a run is not shown: %q", text)
				}
			}
			wantArguments(t, asked)
			if again := len(asked) > 1; again != strings.Contains(deleted, "kubectl delete namespaces --selector e2e-test") {
				t.Errorf("runs %q, and deletes %q: what failed tests have kept goes before they run again", asked, deleted)
			}
		})
	}
}

// wantArguments compares the arguments of each run.
func wantArguments(t *testing.T, asked []string) {
	t.Helper()
	if !strings.Contains(asked[0], " -test.skip ^(TestY)$ ") {
		t.Errorf("it runs with %s, and so with tests of other rounds", asked[0])
	}
	for _, a := range asked {
		if !strings.HasPrefix(a, "nftables: -test.v -test.timeout ") || !strings.Contains(a, " -test.run TestX") {
			t.Errorf("it runs with %s", a)
		}
	}
	if len(asked) > 1 && !strings.HasSuffix(asked[1], "-test.parallel 1 -test.skip ^$ -test.run ^(TestA)$") {
		t.Errorf("it runs again with %s", asked[1])
	}
}

// endToEndRun runs a copy of the script where a cluster is up and the test program prints these texts. asked are the program's arguments, deleted what
// it deletes in the cluster.
func endToEndRun(t *testing.T, runs []string) (out string, asked []string, deleted string, err error) {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "hack/e2e.sh"), read(t, "../../../e2e.sh"))
	write(t, filepath.Join(root, "hack/cluster/kc"), clusterProgram)
	for _, nothing := range []string{"hack/preflight.sh", "hack/quick.sh", "hack/deploy.sh", "bin/make", "bin/go", "test/e2e/here"} {
		write(t, filepath.Join(root, nothing), "#!/bin/bash\n")
	}
	write(t, filepath.Join(root, "build/e2e.test"), testProgram)
	write(t, filepath.Join(root, "test/e2e/x_test.go"), "//e2e:rounds nftables\nfunc TestX(t *testing.T) {\n//e2e:rounds nri\nfunc TestY(t *testing.T) {\n")
	for i, text := range runs {
		write(t, filepath.Join(root, fmt.Sprintf("build/run%d", i+1)), text)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "hack/e2e.sh"), "-test.run", "TestX")
	cmd.Env = []string{"PATH=" + root + "/bin:" + os.Getenv("PATH"), "HOME=" + root, "E2E_KEEP=1", "E2E_BACKENDS=nftables", "E2E_HOOKS=", "HELM=/bin/true"}
	text, err := cmd.CombinedOutput()
	note, _ := os.ReadFile(filepath.Join(root, "hack/cluster/deleted")) // there is none if it deletes nothing
	return string(text), strings.Split(strings.TrimSpace(read(t, filepath.Join(root, "build/arguments"))), "\n"), string(note), err
}
