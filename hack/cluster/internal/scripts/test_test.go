package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"istio-pod-network-controller/hack/cluster/internal/program"
)

// goCommand is a go command whose tests have one package that passes with a skipped test, and one that fails.
const goCommand = `#!/bin/bash
if [[ " $* " == *" list "* ]]; then printf '%s\n' "$PWD/pure" "$PWD/iptables/nftables"; exit; fi
if [[ " $* " != *" -count=1 "* ]]; then printf 'ok  \tm/pure\t(cached)\n'; exit; fi
cat <<'END'
=== RUN   TestKernel
=== RUN   TestKernel/nft
    kernel_test.go:31: network namespaces need root; this is uid 7
--- SKIP: TestKernel (0.00s)
    --- SKIP: TestKernel/nft (0.00s)
=== RUN   TestFine
--- PASS: TestFine (0.00s)
PASS
ok  	m/kernel	0.1s
=== RUN   TestBroken
    broken_test.go:5: got 1, want 2
--- FAIL: TestBroken (0.00s)
=== RUN   TestNoise
--- PASS: TestNoise (0.00s)
FAIL
FAIL	m/broken	0.1s
END
exit 1
`

func TestReasonsOfSkippedTestsAreShown(t *testing.T) {
	programs := fakes(t, machine{uid: "7"}, "")
	write(t, filepath.Join(programs, "go"), goCommand)
	cmd := exec.CommandContext(t.Context(), "../../../test.sh", "go")
	cmd.Env = []string{"PATH=" + programs, "HOME=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("a failed package is no error")
	}
	says(t, string(out), []string{
		"ok  \tm/pure\t(cached)\n", "ok  \tm/kernel\t0.1s\n", "skipped: 2, because network namespaces need root; this is uid 7\n",
		"=== RUN   TestBroken\n    broken_test.go:5: got 1, want 2\n--- FAIL: TestBroken", "FAIL\tm/broken", "2 tests passed",
	}, []string{"TestFine", "TestNoise"})
}

// What tests, linters and tools compile is taken by the cluster's programs only if the flags are the same to the letter.
func TestQuick_flags_areThoseOfTheClustersPrograms(t *testing.T) {
	for before, want := range map[string]string{
		"":                "-trimpath -tags=grpcnotrace '-gcflags=" + program.Gcflags + "'",
		"-buildvcs=false": "-buildvcs=false -trimpath -tags=grpcnotrace '-gcflags=" + program.Gcflags + "'",
	} {
		cmd := exec.CommandContext(t.Context(), "../../../quick.sh", "../../../quick.sh", "bash", "-c", "echo $CGO_ENABLED $GOFLAGS")
		// The home is the caller's: the go command's telemetry writes to a fresh one after the command has ended, while the test removes it.
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "GOENV=off", "GOFLAGS=" + before}
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != "0 "+want {
			t.Errorf("GOFLAGS=%s: %v, %q, want %q", before, err, got, want)
		}
	}
}
