package deploy

import (
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// cronJob decodes the example; a field that its type does not have is an error.
func cronJob(t *testing.T) *batchv1.CronJob {
	t.Helper()
	var job batchv1.CronJob
	if err := yaml.UnmarshalStrict([]byte(read(t, "cronjob.yaml")), &job); err != nil {
		t.Fatal(err)
	}
	return &job
}

func TestCronJob(t *testing.T) {
	job := cronJob(t)
	if job.APIVersion != batchv1.SchemeGroupVersion.String() || job.Kind != "CronJob" {
		t.Errorf("it is a %s %s", job.APIVersion, job.Kind)
	}
	spec := job.Spec.JobTemplate.Spec
	pod := spec.Template.Spec
	if pod.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("restartPolicy %q: a podFailurePolicy needs Never", pod.RestartPolicy)
	}
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers, the test knows of one", len(pod.Containers))
	}
	container := pod.Containers[0]
	for _, rule := range spec.PodFailurePolicy.Rules {
		if rule.OnExitCodes == nil {
			continue
		}
		if name := rule.OnExitCodes.ContainerName; name == nil || *name != container.Name {
			t.Errorf("a rule is about container %v, there is only %s", name, container.Name)
		}
		if !slices.IsSorted(rule.OnExitCodes.Values) || slices.Contains(rule.OnExitCodes.Values, 0) {
			t.Errorf("exit codes %v: have to be sorted, without 0", rule.OnExitCodes.Values)
		}
	}
	var mounted []string
	for _, v := range pod.Volumes {
		mounted = append(mounted, v.Name)
	}
	for _, m := range container.VolumeMounts {
		if !slices.Contains(mounted, m.Name) {
			t.Errorf("volume %s is mounted and not declared", m.Name)
		}
	}

	// The decoder does look.
	wrong := strings.Replace(read(t, "cronjob.yaml"), "  concurrencyPolicy:", "  concurencyPolicy:", 1)
	if err := yaml.UnmarshalStrict([]byte(wrong), &batchv1.CronJob{}); err == nil {
		t.Error("a misspelt field was taken")
	}
}
