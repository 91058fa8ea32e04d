package intent

import (
	"errors"

	"istio-pod-network-controller/iptables"
)

// Defaults are the values for pods without the annotation, in the annotation's syntax, by the names of their flags.
type Defaults map[string]string

// StandardDefaults returns Istio's defaults.
func StandardDefaults() Defaults {
	return Defaults{
		settingMode: string(iptables.ModeRedirect), settingOutboundPort: "15001", settingInboundPort: "15006", settingTunnelPort: "15008",
		settingIncludeCIDRs: "*", settingExcludeCIDRs: "", settingIncludeInbound: "*", settingExcludeInbound: "15020",
		settingIncludeOutbound: "", settingExcludeOutbound: "15020", settingIPv6: ipv6Capture, settingInboundPorts: inboundAll,
		SettingForeignRules: ForeignRulesFail, settingHoldSeconds: "30",
	}
}

// Validate returns an error that names every invalid default by its flag.
func (d Defaults) Validate() error {
	r := reader{defaults: d}
	r.foreignRules()
	r.hold()
	if s := r.spec(); len(r.errs) == 0 {
		return r.checkable(s)
	}
	return errors.Join(r.errs...)
}
