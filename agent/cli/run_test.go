package cli

import (
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/test/kerneltest"
)

func TestRunNamesEveryWrongFlagAtOnce(t *testing.T) {
	args := map[string]string{
		"runtime": "podman", "log-level": "loud", "health-addr": "here", "metrics-addr": "there", "pprof-addr": "anywhere", "verify-interval": "999ms",
		"backend": "ebpf", "select": "some", "unsupported-runtime-handlers": "[", "envoy-port": "0",
		"include-inbound-ports": "x", "cluster-dns": "kube-dns", "interception-mode": "SIDEWAYS", "exclude-outbound-ip-ranges": "*",
		"daemonset": "a/b", "pod-name": "a/b", "cni": "chain", "sidecar-root": "sidecars", "sidecar-secrets": "secrets",
		"startup-taint-key": "a/b/c",
	}
	line := []string{"run"}
	for flag, value := range args {
		line = append(line, "--"+flag+"="+value)
	}
	code, _, errOut := call(t, "", line...)
	if code != cmdline.ExitError || !strings.Contains(errOut, "--node-name: required") {
		t.Errorf("code %d: %s", code, errOut)
	}
	for flag := range args {
		if !strings.Contains(errOut, "--"+flag) {
			t.Errorf("%s is not named in: %s", flag, errOut)
		}
	}
}

// A flag that does not exist would be found by users. config/ is the chart rendered; that its values and agent.extraArgs reach every flag is the chart's test.
func TestTheChart_flags_areFlagsOfRun(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "kubernetes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	given := regexp.MustCompile(`--([a-z0-9-]+)=`).FindAllStringSubmatch(string(text), -1)
	for _, m := range given {
		if newRun().Flags().Lookup(m[1]) == nil {
			t.Errorf("run has no flag --%s", m[1])
		}
	}
	if len(given) < 20 {
		t.Errorf("the chart gives %d flags", len(given))
	}
}

func TestTwoThreadsUnlessTheEnvironmentSaysOtherwise(t *testing.T) {
	before := goruntime.GOMAXPROCS(3)
	defer goruntime.GOMAXPROCS(before)
	t.Setenv("GOMAXPROCS", "3")
	if useTwoThreads(); goruntime.GOMAXPROCS(0) != 3 {
		t.Errorf("%d threads, the environment says 3", goruntime.GOMAXPROCS(0))
	}
	t.Setenv("GOMAXPROCS", "")
	if useTwoThreads(); goruntime.GOMAXPROCS(0) != 2 {
		t.Errorf("%d threads", goruntime.GOMAXPROCS(0))
	}
}

func TestCertificatesOfMetricsNeedMetricsByTLS(t *testing.T) {
	for name, tc := range map[string]struct {
		args   []string
		wantOK bool
	}{
		"a directory":                   {[]string{"--metrics-secure", "--metrics-cert-dir=/etc/tls"}, true},
		"none":                          {[]string{"--metrics-secure"}, true},
		"a directory, and no TLS":       {[]string{"--metrics-cert-dir=/etc/tls"}, false},
		"a directory that is not clear": {[]string{"--metrics-secure", "--metrics-cert-dir=tls"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, errOut := call(t, "", append([]string{"run"}, tc.args...)...) // --node-name is missing: it never runs
			if got := !strings.Contains(errOut, "--metrics-cert-dir"); got != tc.wantOK {
				t.Errorf("accepted: %t, want %t: %s", got, tc.wantOK, errOut)
			}
		})
	}
}

func TestThisKernelIsProbed(t *testing.T) {
	kerneltest.New(t) // needs the same rights
	if ordinary, tproxy := probeKernel(t.Context()); ordinary != nil || tproxy != nil {
		t.Errorf("%v, %v", ordinary, tproxy)
	}
}
