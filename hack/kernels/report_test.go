package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"istio-pod-network-controller/hack/kernels/job"
	"istio-pod-network-controller/hack/kernels/report"
)

// said is the output of a test program that was started with -test.v=test2json.
func said(lines ...string) string {
	return "\x16" + strings.Join(lines, "\n\x16") + "\n"
}

func TestReport_countsByBackend_andNamesWhatFailed(t *testing.T) {
	cases := map[string]struct {
		kernel      string
		files       map[string]string
		want        []report.Count
		wantFailed  []string
		wantSaid    string
		wantSkipped int
	}{
		"parts count, and what has parts does not": {
			files: map[string]string{"p.code": "0", "p.out": said("=== RUN   TestA", "=== RUN   TestA/nftables", "--- PASS: TestA/nftables (0.01s)",
				"=== RUN   TestA/iptables_legacy", "--- PASS: TestA/iptables_legacy (0.01s)", "--- PASS: TestA (0.02s)", "PASS")},
			want: []report.Count{{Backend: "iptables-legacy", Passed: 1, Failed: 0, Skipped: 0}, {Backend: "nftables", Passed: 1, Failed: 0, Skipped: 0}},
		},
		"a test that fails": {
			files:      map[string]string{"p.code": "1", "p.out": said("=== RUN   TestA") + "    x_test.go:20: too slow\n" + said("--- FAIL: TestA (0.01s)", "FAIL")},
			want:       []report.Count{{Backend: "any", Passed: 0, Failed: 1, Skipped: 0}},
			wantFailed: []string{"p.TestA"}, wantSaid: "p.TestA fails:\n",
		},
		"a test that fails behind its parts": {
			files: map[string]string{"p.code": "1", "p.out": said("=== RUN   TestA", "=== RUN   TestA/x", "--- PASS: TestA/x (0.01s)", "--- FAIL: TestA (0.02s)", "FAIL")},
			want:  []report.Count{{Backend: "any", Passed: 1, Failed: 1, Skipped: 0}}, wantFailed: []string{"p.TestA"},
		},
		"a program that the machine did not come to": {wantFailed: []string{"p did not run to its end"}},
		"a program that ends before its tests do": {
			files: map[string]string{"p.code": "2", "p.out": said("=== RUN   TestA", "panic: x")},
			want:  []report.Count{{Backend: "any", Passed: 0, Failed: 1, Skipped: 0}}, wantFailed: []string{"p ended with 2", "p.TestA"},
		},
		"a test that is skipped because the kernel is old": {
			kernel: "5.10.0-32-amd64",
			files: map[string]string{"p.code": "0", "p.out": said("=== RUN   TestA", "=== NAME  TestA") +
				"    x_test.go:20: this kernel has no SO_NETNS_COOKIE: it is older than Linux 5.14\n" + said("--- SKIP: TestA (0.01s)", "PASS")},
			want: []report.Count{{Backend: "any", Passed: 0, Failed: 0, Skipped: 1}}, wantSkipped: 1,
		},
		"a test that is skipped though the kernel is new enough": {
			kernel: "6.1.0-50-s390x",
			files: map[string]string{"p.code": "0", "p.out": said("=== RUN   TestA", "=== NAME  TestA") +
				"    x_test.go:20: no egress chains: it is older than Linux 5.16\n" + said("--- SKIP: TestA (0.01s)", "PASS")},
			want: []report.Count{{Backend: "any", Passed: 0, Failed: 0, Skipped: 1}}, wantSkipped: 1,
			wantFailed: []string{"p.TestA was skipped: no egress chains: it is older than Linux 5.16"},
		},
		"a test that is skipped without leave": {
			kernel: "6.12.1",
			files: map[string]string{"p.code": "0", "p.out": said("=== RUN   TestA", "=== NAME  TestA") +
				"    x_test.go:20: nft is not installed\n" + said("--- SKIP: TestA (0.01s)", "PASS")},
			want: []report.Count{{Backend: "any", Passed: 0, Failed: 0, Skipped: 1}}, wantSkipped: 1, wantFailed: []string{"p.TestA was skipped: nft is not installed"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, console := readFiles(t, c.kernel, c.files)
			if !slices.Equal(got.Backends, c.want) || !slices.Equal(got.Failed, c.wantFailed) || len(got.Skipped) != c.wantSkipped || !strings.Contains(console, c.wantSaid) {
				t.Errorf("%+v\n%s", got, console)
			}
			if err := show(t.Output(), got); (err != nil) != (len(c.wantFailed) > 0) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// readFiles reads what the program p has left, and returns the report and what was printed.
func readFiles(t *testing.T, kernel string, files map[string]string) (report.Report, string) {
	t.Helper()
	var console strings.Builder
	m := Machine{Kernel: Kernel{Release: kernel}, Results: t.TempDir(), Console: &console}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(m.Results, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := m.read(t.Context(), []job.Program{{Name: "p"}})
	if err != nil {
		t.Fatal(err)
	}
	return got, console.String()
}

func TestBackends_ofATestsName(t *testing.T) {
	for test, want := range map[string]string{
		"iptables_nftables.TestApply":                                   "[nftables]",
		"iptables_xtables.TestApply/nft":                                "[iptables-nft]",
		"iptables_xtables.TestApply/legacy":                             "[iptables-legacy]",
		"test_conformance.TestX/iptables_nft/REDIRECT":                  "[iptables-nft]",
		"iptables_kernel.TestY/nftables,_then_iptables_legacy":          "[nftables iptables-legacy]",
		"internal_netns.TestOpenRefusesWhatIsNoNetworkNamespace/a_FIFO": "[any]",
	} {
		if got := fmt.Sprint(backends(test)); got != want {
			t.Errorf("%s: %s, want %s", test, got, want)
		}
	}
}
