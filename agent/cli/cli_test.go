package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/internal/cmdline"
)

// A mistyped command must not look as if it had been done.
func TestAMistypedCommandIsAnError(t *testing.T) {
	for line, want := range map[string]string{
		"cnii uninstall":                         `unknown command "cnii" for "istio-pod-network-controller": did you mean cni?`,
		"rules aply":                             `unknown command "aply" for "istio-pod-network-controller rules": did you mean apply?`,
		"cni unistall":                           "uninstall?",
		"something":                              "see istio-pod-network-controller --help",
		"version more":                           "more",
		"run now":                                "now",
		"connectivity stand-in prove --target x": "--target",
		"rules show extra":                       `"extra": istio-pod-network-controller rules show takes no arguments`,
	} {
		if code, _, errOut := call(t, "", strings.Fields(line)...); code != cmdline.ExitError || !strings.Contains(errOut, want) {
			t.Errorf("%s: code %d, said %q, want %q", line, code, errOut, want)
		}
	}
	for _, line := range []string{"", "rules", "cni", "--help", "rules --help"} {
		if code, out, errOut := call(t, "", strings.Fields(line)...); code != 0 || !strings.Contains(out, "Usage:") {
			t.Errorf("%q: code %d, said %q %q", line, code, out, errOut)
		}
	}
}

func TestTheReleaseIsTheChartsAppVersion(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "chart", "istio-pod-network-controller", "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var chart struct {
		AppVersion string `json:"appVersion"`
	}
	if err := yaml.Unmarshal(data, &chart); err != nil || chart.AppVersion != cmdline.Release {
		t.Errorf("the chart's appVersion is %q, the program's release %q: %v", chart.AppVersion, cmdline.Release, err)
	}
	for _, line := range []string{"version", "--version"} {
		if code, out, errOut := call(t, "", line); code != 0 || !strings.Contains(out+errOut, cmdline.Release+"-dev") {
			t.Errorf("%s: code %d, said %q %q", line, code, out, errOut)
		}
	}
}
