package inspect

import (
	"slices"

	"istio-pod-network-controller/internal/intent"
)

// preempted reports whether foreign rules may decide before ours, and the pod's namespace does not accept that.
func (d Document) preempted() bool {
	accepted := slices.ContainsFunc(d.Asked.Settings, func(s intent.Setting) bool {
		return s.Name == intent.SettingForeignRules && s.Value == intent.ForeignRulesWarn
	})
	return len(d.Others.Preempting) > 0 && !accepted
}
