"""The publications behind what a run uses, as BibTeX."""

from __future__ import annotations

import dataclasses
from typing import Any

_JAXAFL = """@software{jaxafl,
  title = {jaxafl: a JAX-accelerated, vectorised simulator of asynchronous federated learning}
}"""

BIBTEX = {
    "mcmahan2017": """@inproceedings{mcmahan2017,
  title = {Communication-Efficient Learning of Deep Networks from Decentralized Data},
  author = {McMahan, H. Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and Ag{\\"u}era y Arcas, Blaise},
  booktitle = {AISTATS},
  year = {2017}
}""",
    "li2020": """@inproceedings{li2020,
  title = {Federated Optimization in Heterogeneous Networks},
  author = {Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and
    Smith, Virginia},
  booktitle = {MLSys},
  year = {2020}
}""",
    "reddi2021": """@inproceedings{reddi2021,
  title = {Adaptive Federated Optimization},
  author = {Reddi, Sashank J. and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and Rush, Keith and
    Kone{\\v{c}}n{\\'y}, Jakub and Kumar, Sanjiv and McMahan, H. Brendan},
  booktitle = {ICLR},
  year = {2021}
}""",
    "wang2022fedams": """@inproceedings{wang2022fedams,
  title = {Communication-Efficient Adaptive Federated Learning},
  author = {Wang, Yujia and Lin, Lu and Chen, Jinghui},
  booktitle = {ICML},
  year = {2022}
}""",
    "xie2019": """@article{xie2019,
  title = {Asynchronous Federated Optimization},
  author = {Xie, Cong and Koyejo, Sanmi and Gupta, Indranil},
  journal = {arXiv:1903.03934},
  year = {2019}
}""",
    "wang2022asyncfeded": """@article{wang2022asyncfeded,
  title = {{AsyncFedED}: Asynchronous Federated Learning with Euclidean Distance based Adaptive Weight Aggregation},
  author = {Wang, Qiyuan and Yang, Qianqian and He, Shibo and Shi, Zhiguo and Chen, Jiming},
  journal = {arXiv:2205.13797},
  year = {2022}
}""",
    "nguyen2022": """@inproceedings{nguyen2022,
  title = {Federated Learning with Buffered Asynchronous Aggregation},
  author = {Nguyen, John and Malik, Kshitiz and Zhan, Hongyuan and Yousefpour, Ashkan and Rabbat, Mike and
    Malek, Mani and Huba, Dzmitry},
  booktitle = {AISTATS},
  year = {2022}
}""",
    "wang2024fadas": """@inproceedings{wang2024fadas,
  title = {{FADAS}: Towards Federated Adaptive Asynchronous Optimization},
  author = {Wang, Yujia and Wang, Shiqiang and Lu, Songtao and Chen, Jinghui},
  booktitle = {ICML},
  year = {2024}
}""",
    "wang2024ca2fl": """@inproceedings{wang2024ca2fl,
  title = {Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update Calibration},
  author = {Wang, Yujia and Cao, Yuanpu and Wu, Jingcheng and Chen, Ruoyu and Chen, Jinghui},
  booktitle = {ICLR},
  year = {2024}
}""",
    "wang2024defedavg": """@article{wang2024defedavg,
  title = {Achieving Linear Speedup in Asynchronous Federated Learning with Heterogeneous Clients},
  author = {Wang, Xiaolu and Li, Zijian and Jin, Shi and Zhang, Jun},
  journal = {arXiv:2402.11198},
  year = {2024}
}""",
    "leconte2023": """@article{leconte2023,
  title = {{FAVAS}: Federated AVeraging with ASynchronous clients},
  author = {Leconte, Louis and Nguyen, Van Minh and Moulines, Eric},
  journal = {arXiv:2305.16099},
  year = {2023}
}""",
    "zakerinia2022": """@article{zakerinia2022,
  title = {{QuAFL}: Federated Averaging Can Be Both Asynchronous and Communication-Efficient},
  author = {Zakerinia, Hossein and Talaei, Shayan and Nadiradze, Giorgi and Alistarh, Dan},
  journal = {arXiv:2206.10032},
  year = {2022}
}""",
    "wu2021": """@article{wu2021,
  title = {{SAFA}: A Semi-Asynchronous Protocol for Fast Federated Learning with Low Overhead},
  author = {Wu, Wentai and He, Ligang and Lin, Weiwei and Mao, Rui and Maple, Carsten and Jarvis, Stephen},
  journal = {IEEE Transactions on Computers},
  year = {2021}
}""",
    "lian2015": """@inproceedings{lian2015,
  title = {Asynchronous Parallel Stochastic Gradient for Nonconvex Optimization},
  author = {Lian, Xiangru and Huang, Yijun and Li, Yuncheng and Liu, Ji},
  booktitle = {NeurIPS},
  year = {2015}
}""",
    "hao2025": """@article{hao2025,
  title = {The Impact Analysis of Delays in Asynchronous Federated Learning with Data Heterogeneity for Edge
    Intelligence},
  author = {Hao, Ziruo and Cui, Zhenhua and Yang, Tao and Wu, Xiaofeng and Feng, Hui and Hu, Bo},
  journal = {arXiv:2503.04052},
  year = {2025}
}""",
    "yang2021": """@inproceedings{yang2021,
  title = {Characterizing Impacts of Heterogeneity in Federated Learning upon Large-Scale Smartphone Data},
  author = {Yang, Chengxu and Wang, Qipeng and Xu, Mengwei and Chen, Zhenpeng and Bian, Kaigui and Liu, Yunxin and
    Liu, Xuanzhe},
  booktitle = {The Web Conference},
  year = {2021}
}""",
    "mao2017": """@inproceedings{mao2017,
  title = {Neural Adaptive Video Streaming with {Pensieve}},
  author = {Mao, Hongzi and Netravali, Ravi and Alizadeh, Mohammad},
  booktitle = {SIGCOMM},
  year = {2017}
}""",
    "lecun1998": """@article{lecun1998,
  title = {Gradient-Based Learning Applied to Document Recognition},
  author = {LeCun, Yann and Bottou, L{\\'e}on and Bengio, Yoshua and Haffner, Patrick},
  journal = {Proceedings of the IEEE},
  year = {1998}
}""",
    "xiao2017": """@article{xiao2017,
  title = {Fashion-{MNIST}: a Novel Image Dataset for Benchmarking Machine Learning Algorithms},
  author = {Xiao, Han and Rasul, Kashif and Vollgraf, Roland},
  journal = {arXiv:1708.07747},
  year = {2017}
}""",
    "caldas2018": """@article{caldas2018,
  title = {{LEAF}: A Benchmark for Federated Settings},
  author = {Caldas, Sebastian and others},
  journal = {arXiv:1812.01097},
  year = {2018}
}""",
    "afl2025": """@article{afl2025,
  title = {Asynchronous Federated Learning with non-convex client objective functions and heterogeneous dataset},
  author = {Forootani, Ali and Iervolino, Raffaele},
  journal = {IEEE Transactions on Artificial Intelligence},
  year = {2025}
}""",
    "krizhevsky2009": """@techreport{krizhevsky2009,
  title = {Learning Multiple Layers of Features from Tiny Images},
  author = {Krizhevsky, Alex},
  institution = {University of Toronto},
  year = {2009}
}""",
    "yadav2019": """@inproceedings{yadav2019,
  title = {Cold Case: The Lost {MNIST} Digits},
  author = {Yadav, Chhavi and Bottou, L{\\'e}on},
  booktitle = {NeurIPS},
  year = {2019}
}""",
    "wang2019glue": """@inproceedings{wang2019glue,
  title = {{GLUE}: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding},
  author = {Wang, Alex and Singh, Amanpreet and Michael, Julian and Hill, Felix and Levy, Omer and Bowman, Samuel R.},
  booktitle = {ICLR},
  year = {2019}
}""",
    "dagan2006": """@inproceedings{dagan2006,
  title = {The {PASCAL} Recognising Textual Entailment Challenge},
  author = {Dagan, Ido and Glickman, Oren and Magnini, Bernardo},
  booktitle = {Machine Learning Challenges},
  year = {2006}
}""",
    "dolan2005": """@inproceedings{dolan2005,
  title = {Automatically Constructing a Corpus of Sentential Paraphrases},
  author = {Dolan, William B. and Brockett, Chris},
  booktitle = {International Workshop on Paraphrasing},
  year = {2005}
}""",
    "socher2013": """@inproceedings{socher2013,
  title = {Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank},
  author = {Socher, Richard and Perelygin, Alex and Wu, Jean and Chuang, Jason and Manning, Christopher D. and
    Ng, Andrew and Potts, Christopher},
  booktitle = {EMNLP},
  year = {2013}
}""",
    "he2016": """@inproceedings{he2016,
  title = {Deep Residual Learning for Image Recognition},
  author = {He, Kaiming and Zhang, Xiangyu and Ren, Shaoqing and Sun, Jian},
  booktitle = {CVPR},
  year = {2016}
}""",
    "devlin2019": """@inproceedings{devlin2019,
  title = {{BERT}: Pre-training of Deep Bidirectional Transformers for Language Understanding},
  author = {Devlin, Jacob and Chang, Ming-Wei and Lee, Kenton and Toutanova, Kristina},
  booktitle = {NAACL},
  year = {2019}
}""",
    "hu2022": """@inproceedings{hu2022,
  title = {{LoRA}: Low-Rank Adaptation of Large Language Models},
  author = {Hu, Edward J. and Shen, Yelong and Wallis, Phillip and Allen-Zhu, Zeyuan and Li, Yuanzhi and
    Wang, Shean and Wang, Lu and Chen, Weizhu},
  booktitle = {ICLR},
  year = {2022}
}""",
}


def citation(*parts: Any) -> str:
    """BibTeX of jaxafl and of the publications that parts, and the dataclasses that they hold, name in `references`:
    keys of `BIBTEX`, or entries of their own."""
    keys: list[str] = []
    for part in parts:
        _collect(part, keys)
    return "\n\n".join([_JAXAFL, *(BIBTEX.get(key, key) for key in dict.fromkeys(keys))])


def _collect(node: Any, keys: list[str]) -> None:
    keys.extend(getattr(node, "references", ()))
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        for field in dataclasses.fields(node):
            _collect(getattr(node, field.name), keys)
