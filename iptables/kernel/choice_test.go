package kernel

import (
	"context"
	"errors"
	"strings"
	"testing"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

func TestTheBackendIsChosenWithAReason(t *testing.T) {
	kerneltest.New(t)
	refusing := func(context.Context, iptables.Ruleset) error { return errors.New("no nf_tables here") }
	cases := map[string]struct {
		flag    string
		refuse  bool
		path    string
		want    string
		because string
		wantErr string
	}{
		"auto, the kernel can":              {flag: "auto", want: "nftables", because: "takes its rules"},
		"auto, it cannot":                   {flag: "auto", refuse: true, want: "iptables", because: "no nf_tables here; iptables 1."},
		"auto, it cannot, and no programs":  {flag: "auto", refuse: true, path: "/nonexistent", wantErr: "-nft-restore"},
		"nftables":                          {flag: "nftables", want: "nftables", because: "takes its rules"},
		"nftables, and the kernel cannot":   {flag: "nftables", refuse: true, wantErr: "no nf_tables here"},
		"iptables":                          {flag: "iptables", want: "iptables", because: "flavour; this node has "},
		"iptables, and there is no program": {flag: "iptables", path: "/nonexistent", wantErr: "tag ends in -iptables"},
		"nftables, and there is no program": {flag: "nftables", path: "/nonexistent", want: "nftables"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.path != "" {
				t.Setenv("PATH", c.path)
			}
			choice := choiceOf(t)
			if c.refuse {
				choice.probe = refusing
			}
			e, reason, err := choice.Choose(t.Context(), c.flag)
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("error %v, want %q", err, c.wantErr)
				}
				return
			}
			if err != nil || e.Name() != c.want || !strings.Contains(reason, c.because) {
				t.Errorf("%v, %q, %v", e.chosen, reason, err)
			}
		})
	}
}
