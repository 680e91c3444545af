package overrides

// The dialects of the Trainers that are known.
var (
	// Bundled is this project's Trainer. TrainJobs have runtimePatches, templateOverrides, and podTemplateOverrides.
	Bundled = &Dialect{
		Traits: Traits{
			Name: "the bundled Trainer", Field: RuntimePatches, CountsJobs: true, PartialAdmission: true,
		},
		Rules: amending, Reader: Guide,
	}
	Kubeflow23 = &Dialect{
		Traits: Traits{Name: "Kubeflow Trainer v2.3", Field: RuntimePatches, CountsJobs: true, Snapshots: true},
		Rules:  merging, Reader: Recorded,
	}
	Kubeflow22 = &Dialect{
		Traits: Traits{Name: "Kubeflow Trainer v2.2", Field: RuntimePatches, CountsJobs: true},
		Rules:  replacing, Reader: Recorded,
	}
	Kubeflow21 = &Dialect{
		Traits: Traits{Name: "Kubeflow Trainer v2.1", Field: PodTemplateOverrides, CountsJobs: true},
		Rules:  replacing, Reader: PodTemplateList, List: PodTemplateList,
	}
	Kubeflow20 = &Dialect{
		Traits: Traits{Name: "Kubeflow Trainer v2.0", Field: PodSpecOverrides},
		Rules:  replacingAlone, Reader: PodSpecList, List: PodSpecList,
	}
)
