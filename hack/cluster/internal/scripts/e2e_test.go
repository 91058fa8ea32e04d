package scripts

import (
	"os/exec"
	"strings"
	"testing"
)

// A word that is not known used to run no test at all, and to pass.
func TestEndToEndRunNamesAWordThatItDoesNotKnow(t *testing.T) {
	for setting, want := range map[string]string{
		"E2E_BACKENDS=nftables iptable": `E2E_BACKENDS names "iptable": there are nftables iptables`,
		"E2E_BACKENDS= ":                `E2E_BACKENDS names ""`,
		"E2E_ENTRANCES=nir":             `E2E_ENTRANCES names "nir": there are nri required wait cni lifecycle`,
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
