"""Parts of the synchronous pipelines: where to cut, stages, spans, the average over replicas."""
