package render

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint/support"
)

type helm3 struct{}

func (helm3) Render(ctx context.Context, request Request) (Release, error) {
	chart, err := loader.Load(request.Chart)
	if err != nil {
		return Release{}, err
	}
	client := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	client.ClientOnly, client.DryRun, client.APIVersions = true, true, request.Kinds
	client.ReleaseName, client.Namespace = Name, Name
	client.KubeVersion = &chartutil.KubeVersion{Version: cmp.Or(request.Version, "v1.37.0"), Major: "1", Minor: "37"}
	made, err := client.RunWithContext(ctx, chart, request.Values)
	if err != nil {
		return Release{}, err
	}
	release := Release{Manifest: normal(made.Manifest), Notes: strings.TrimSpace(made.Info.Notes)}
	for _, h := range made.Hooks {
		release.Hooks = append(release.Hooks, Hook{strings.TrimSpace(h.Manifest), h.Weight, fmt.Sprint(h.Events, h.DeletePolicies)})
	}
	return release, nil
}

func (helm3) Definitions(dir string, values map[string]any) (map[string]string, error) {
	chart, err := loader.Load(dir)
	if err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependencies(chart, values); err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, crd := range chart.CRDObjects() {
		found[crd.Filename] = string(crd.File.Data)
	}
	return found, nil
}

func (helm3) Lint(chart string, values map[string]any) (faults []error) {
	lint := action.NewLint()
	lint.Strict, lint.Namespace = true, "lint"
	for _, message := range lint.Run([]string{chart}, values).Messages {
		if message.Severity >= support.WarningSev {
			faults = append(faults, message)
		}
	}
	return faults
}
